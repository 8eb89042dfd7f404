"""Processes killed amid a stream and a report: what is done again is whole, and nothing is twice."""

import faulthandler
import os
import signal
import subprocess
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from pyarrow import parquet
from pyspark.sql import SparkSession

from django_delayq import cancel_delay_messages, send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.models import ReadyMessage, ReportRow
from django_delayq.spark import files
from django_delayq.spark.files import write_tables
from tests.spark.conftest import OF_FEW_ROWS, QUICK_START
from tests.spark.ended import fail, finish
from tests.spark.following import follow
from tests.spark.processes import PATIENCE_S, started, until_amid
from tests.spark.support import STORED
from tests.spark.test_archive import Killed, kill_at

BATCH = int(OF_FEW_ROWS["spark.sql.execution.arrow.maxRecordsPerBatch"])
ENDED = range(1_000_001, 1_000_001 + 6 * BATCH, 2)
"""The pks of what a stream sends in three batches; none that a row of a note has."""
DONE = 2 * BATCH
"""How many it has sent when it is killed."""


@pytest.fixture
def env(spark_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return what a process with a Spark of its own has in its environment."""
    faulthandler.cancel_dump_traceback_later()  # on a busy machine Java's start may take longer than any other test
    settings = "\n".join(f"{name} {value}" for name, value in {**QUICK_START, **OF_FEW_ROWS}.items())
    (tmp_path / "spark-defaults.conf").write_text(settings)
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**env, **spark_env, "SPARK_CONF_DIR": str(tmp_path)}


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL it, its Java and its Python processes, and return when they have ended."""
    of_process = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for each in of_process:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    _, alive = psutil.wait_procs(of_process, timeout=PATIENCE_S)
    assert alive == []


def kill_python_of_spark(process: subprocess.Popen[str]) -> None:
    """SIGKILL what reads and writes for it."""
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.cmdline()[-1:] == ["pyspark.worker"]:
                each.kill()


def test_a_stream_that_is_killed_amid_a_batch_goes_on_without_a_gap_and_sends_nothing_twice(
    spark: SparkSession, env: dict[str, str], tmp_path: Path
) -> None:
    using, checkpoint = get_alias(STORED).database, str(tmp_path / "checkpoint")
    ready = ReadyMessage.objects.using(using)
    finish(STORED, ENDED)
    with (
        started([sys.executable, "-m", "tests.spark.following", checkpoint], env) as process,
        transaction.atomic(using),
    ):
        send_delay_message("note", id=f"of {ENDED[DONE]}", delay="1h", using=STORED)  # the stream waits for us there
        until_amid(process, lambda: ready.count() == DONE + 1)
        kill_python_of_spark(process)
        until_amid(process, lambda: waiting_for_locks(using) == 2)  # the killed one's and its successor's
        kill(process)
        transaction.set_rollback(True, using)
    finish(STORED, [ENDED.stop])
    cancel_delay_messages(f"of {ENDED[0]}", using=STORED)  # it was sent, and waits no more
    stream = follow(spark, checkpoint)
    stream.processAllAvailable()
    stream.stop()
    ids = ready.values_list("message_id", flat=True)
    assert sorted(int(id.removeprefix("of ")) for id in ids) == [*ENDED[1:], ENDED.stop]
    assert get_backend(STORED).queue.audit().differences == []


def waiting_for_locks(using: str) -> int:
    """Return how many connections to PostgreSQL wait for others."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        count: int = cursor.fetchone()[0]
    return count


def rows_in(directory: Path) -> list[dict[str, Any]] | None:
    """Return what a reader of Parquet finds there."""
    return parquet.read_table(directory).to_pylist() if any(directory.glob("*.parquet")) else None


@pytest.mark.parametrize(
    ("step", "call", "after"),
    [("_remove", 1, False), ("_remove", 1, True), ("_remove", 2, True), ("_place", 1, True), ("_place", 2, True)],
)
def test_tables_are_all_of_one_run_whenever_it_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: int, after: bool
) -> None:
    def write(number: int) -> None:
        write_tables({str(tmp_path / name): spark.range(number, number + 2).repartition(2) for name in "ab"})

    def found() -> tuple[list[int] | None, ...]:
        tables = (rows_in(tmp_path / name) for name in "ab")
        return tuple(None if rows is None else sorted(row["id"] for row in rows) for rows in tables)

    old, new = [10, 11], [20, 21]
    write(10)
    with monkeypatch.context() as patch:
        kill_at(patch, files, step, call, after=after)
        with pytest.raises(Killed):
            write(20)
    assert found() in [(old, old), (old, None), (None, None), (new, None), (new, new)]
    write(20)
    assert found() == (new, new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def killed_amid_its_write(env: dict[str, str], out: Path, *arguments: str) -> None:
    """The same job in a process of its own, with a Spark of its own, killed while Spark writes to `out`."""
    command = [sys.executable, "-m", "django", "delayq_spark", *arguments, "--master", "local[2]"]
    with started(command, env) as process:
        until_amid(process, lambda: bool(glob(f"{out}*/**/attempt_*", recursive=True)))
        kill(process)
        assert process.returncode == -signal.SIGKILL, process.communicate()[0]


@pytest.mark.usefixtures("spark")
def test_a_report_that_is_killed_leaves_the_last_one_as_it_is(env: dict[str, str], tmp_path: Path) -> None:
    out, html = tmp_path / "out", tmp_path / "report.html"
    job = ["report", "--using", STORED, "--out", str(out), "--html", str(html), "--admin"]

    def seen() -> tuple[Any, ...]:
        in_admin = list(ReportRow.objects.using(get_alias(STORED).database).values())
        return rows_in(out / "figures"), rows_in(out / "failures"), html.read_text(), in_admin

    def counted() -> tuple[int, ...]:
        figures, failures, _, in_admin = seen()
        return tuple(sum(row["messages"] for row in rows) for rows in (figures, failures, in_admin))

    finish(STORED, [1, 3])
    fail(STORED, [2])
    call_command("delayq_spark", *job)
    last = seen()
    assert counted() == (3, 1, 3)
    finish(STORED, [5])
    fail(STORED, [4])
    killed_amid_its_write(env, out, *job)
    assert seen() == last
    call_command("delayq_spark", *job)
    assert counted() == (5, 2, 5)
