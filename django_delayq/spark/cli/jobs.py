"""The jobs by name, and the function that runs one."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from django_delayq.conf import get_alias
from django_delayq.spark.cli import archive, campaign, compact, reconcile, report, schedule
from django_delayq.spark.errors import SparkError, reason_of
from django_delayq.spark.interrupts import held_back, without_tracebacks
from django_delayq.spark.session import build_session


class Job(Protocol):
    """The interface of a job's module."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, spark: SparkSession, options: dict[str, Any], write: Callable[[str], None]) -> int:
        """Run the job, and return the exit code."""


JOBS: dict[str, Job] = {
    "schedule": schedule,
    "archive": archive,
    "report": report,
    "reconcile": reconcile,
    "compact": compact,
    "campaign": campaign,
}


_LOG_LEVELS = ("OFF", "FATAL", "ERROR", "WARN")
"""Spark's log level for each `--verbosity`. Its errors are tracebacks, and a failed job says why in one line anyway."""


def run_job(name: str, options: dict[str, Any], write: Callable[[str], None]) -> int:
    """Run a job on a session of its own, or on that of `spark-submit`, and return its exit code. Raises `SparkError`.

    On a terminal Spark shows its progress. A Ctrl-C stops the session, and with it the work of its processes.
    """
    get_alias(options["using"])  # an unknown alias is reported before Java has started
    with without_tracebacks():
        try:
            spark = _session(name, options)
            return JOBS[name].run(spark, options, write)
        except (PySparkException, Py4JError) as error:
            raise SparkError(reason_of(error)) from error
        except KeyboardInterrupt:
            _stop()
            raise


def _session(name: str, options: dict[str, Any]) -> SparkSession:
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    with held_back():
        spark = build_session(f"delayq {name}", master=options["master"], config=progress)
        _quieten(spark, options["verbosity"])
    return spark


def _stop() -> None:
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.stop()


def _quieten(spark: SparkSession, verbosity: int) -> None:
    level = _LOG_LEVELS[verbosity]
    spark.sparkContext.setLogLevel(level)
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = level in ("OFF", "FATAL")
