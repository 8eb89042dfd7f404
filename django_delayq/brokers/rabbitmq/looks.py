"""What RabbitMQ can tell of itself over AMQP: how many messages its queues have that were sent to nobody."""

from amqp import Connection

from django_delayq.brokers.base import Counts, ServerReport, SetCount
from django_delayq.brokers.rabbitmq.names import LEVELS, Names
from django_delayq.brokers.rabbitmq.register import Entries
from django_delayq.brokers.rabbitmq.topology import waiting
from django_delayq.texts import text as _

OLDEST = (3, 10)
"""The first version whose quorum queues know a TTL and dead-letter at least once."""
OWN_TIMEOUT = (3, 12)
"""The first version whose queues may ask for a consumer time-out of their own."""
CONSUMER_TIMEOUT_MS = 1_800_000
"""RabbitMQ's own, where its configuration does not say otherwise."""


def count(connection: Connection, names: Names, entries: Entries, now_ms: int) -> Counts:
    """What waits, by (queue, key) once it is due and by level before, and what runs, as the workers said last."""
    with connection.channel() as channel:
        sets = sorted(entries.sets)
        return Counts(
            now_ms,
            [SetCount(*name, 0, waiting(channel, names.ready(*name)), None) for name in sets],
            sum(worker.running for worker in entries.workers_at(now_ms)),
            sum(waiting(channel, names.suspect(*name)) for name in sets),
            waiting(channel, names.error),
            levels=[waiting(channel, names.level(level)) for level in range(LEVELS)],
        )


def report_of(version: str, shown: str) -> ServerReport:
    """Whether a server of this version is fit for a worker."""
    server = _("%(server)s at %(address)s", server=f"RabbitMQ {version}", address=shown)
    durability = _("nothing that was confirmed is lost while most nodes of a quorum queue are there")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    problems: list[str] = [_("%(server)s is too old; use 3.10 or newer.", server=server)] if numbers < OLDEST else []
    longest_run_ms = None if numbers >= OWN_TIMEOUT else CONSUMER_TIMEOUT_MS
    return ServerReport(server, durability, problems=problems, longest_run_ms=longest_run_ms)
