"""Check the broker before a worker starts."""

from time import sleep

from django_delayq.brokers.base import Backend, ServerReport
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable
from django_delayq.store.backend import missing_grants
from django_delayq.worker.outage_log import OutageLog, waits


def ask_report(backend: Backend) -> ServerReport:
    """Wait for the broker, and return its report on itself. Raises `BrokerRefused` when it must not be used."""
    outage_log = OutageLog()
    backoff = waits()
    while True:
        try:
            report = backend.report()
            if backend.store and not report.problems:
                report.problems += missing_grants(backend.store.database)
        except BrokerUnavailable as error:
            outage_log.begin("starting", error)
            sleep(next(backoff))
            continue
        outage_log.end("starting")
        if report.problems:
            raise BrokerRefused(" ".join(report.problems))
        return report
