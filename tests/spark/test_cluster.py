"""Jobs on a cluster of Spark, by `spark-submit`: what dies there is run again, and each row is sent once."""

import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from glob import glob
from pathlib import Path

import psutil
import pytest
from django.db import transaction

from django_delayq import send_delay_message
from django_delayq.conf import get_alias
from django_delayq.models import ReadyMessage
from django_delayq.spark.java import java_home
from django_delayq.spark.jobs.lake import Lake
from tests.docs.site import ROOT
from tests.servers.spark import HOME, SparkMaster, SparkWorker
from tests.spark.conftest import OF_FEW_ROWS, QUICK_START
from tests.spark.ended import finish
from tests.spark.processes import PATIENCE_S, started, until_amid
from tests.spark.support import STORED
from tests.spark.test_archive import in_table, tallies

BATCH = int(OF_FEW_ROWS["spark.sql.execution.arrow.maxRecordsPerBatch"])
ROWS = 4 * BATCH
DONE = 2 * BATCH
"""Rows that were sent when the executor is killed."""

OF_HALF_A_DAY = 12 * 60
"""Pks of rows that ended so far apart."""


@pytest.fixture(scope="module")
def env(spark_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield what Spark's programs have in their environment: Java as the extra brings it, and the site."""
    directory = tmp_path_factory.mktemp("cluster")
    quick = QUICK_START["spark.driver.extraJavaOptions"]
    settings = {**QUICK_START, **OF_FEW_ROWS, "spark.executor.extraJavaOptions": quick, "spark.executor.memory": "512m"}
    (directory / "spark-defaults.conf").write_text("\n".join(f"{name} {value}" for name, value in settings.items()))
    with java_home() as home:
        java = {"JAVA_HOME": home} if home else {}
        yield {
            **java,
            **spark_env,
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": quick,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }


@pytest.fixture(scope="module")
def cluster(env: dict[str, str]) -> Iterator[SparkWorker]:
    """The one worker of a cluster."""
    faulthandler.cancel_dump_traceback_later()
    master = SparkMaster(env)
    try:
        worker = SparkWorker(env, master.url)
        try:
            yield worker
        finally:
            worker.close()
    finally:
        master.close()


@pytest.fixture
def worker(cluster: SparkWorker) -> SparkWorker:
    """The worker, for as long as a test takes: on a busy machine Java's starts may take longer than any other test."""
    faulthandler.cancel_dump_traceback_later()
    return cluster


def submitted(master: str, env: dict[str, str], *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A job."""
    command = [str(HOME / "bin/spark-submit"), "--master", master, "manage.py", "delayq_spark", *arguments]
    return started(command, {**os.environ, **env})


def kill_executor(worker: SparkWorker) -> None:
    """SIGKILL, and return when its Python processes have ended too."""
    running = [each for each in psutil.Process(worker.pid).children(recursive=True) if is_running(each)]
    for each in psutil.Process(worker.pid).children():
        with suppress(psutil.NoSuchProcess):  # beside the executor the worker starts what ends by itself
            each.kill()
    _, alive = psutil.wait_procs(running, timeout=PATIENCE_S)
    assert alive == []


def is_running(process: psutil.Process) -> bool:
    """Return whether it has not ended: the script that became the worker may leave it a child that nobody waits for."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.usefixtures("spark")
def test_a_job_whose_executor_is_killed_amid_its_write_sends_each_row_once(
    env: dict[str, str], worker: SparkWorker, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,on\n" + "".join(f"{n},2096-11-21\n" for n in range(ROWS)))
    plan = ["--key", "note", "--id", "id", "--due", "on || ' 09:00'", "--zone", "UTC"]
    using = get_alias(STORED).database
    ready = ReadyMessage.objects.using(using)
    source = ["--from", str(tmp_path / "rows.csv")]
    with submitted(worker.master, env, "schedule", "--using", STORED, *plan, *source) as job:
        with transaction.atomic(using):
            send_delay_message("note", id=f"note:{DONE}", delay="1h", using=STORED)  # the job waits for us there
            until_amid(job, lambda: ready.count() == DONE + 1)
            kill_executor(worker)
            transaction.set_rollback(True, using)
        told, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, told
    assert f"Read {ROWS}, sent {ROWS - DONE}, there already {DONE}, quarantined 0" in told
    assert ready.count() == ROWS


@pytest.mark.usefixtures("spark")
def test_a_job_whose_executor_is_killed_amid_an_archive_loses_nothing_and_keeps_nothing_twice(
    env: dict[str, str], worker: SparkWorker, tmp_path: Path
) -> None:
    pks = range(0, 60 * OF_HALF_A_DAY, OF_HALF_A_DAY)
    finish(STORED, pks)
    lake = Lake(str(tmp_path / "lake"))
    with submitted(worker.master, env, "archive", "--using", STORED, "--lake", lake.root, "--before", "0s") as job:
        until_amid(job, lambda: bool(glob(f"{lake.root}/**/attempt_*/date=*", recursive=True)))
        kill_executor(worker)
        told, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, told
    assert f"finish: {len(pks)} rows in 1 chunks; 0 rows of a run that was stopped." in told
    assert sorted(lake.column(lake.files("finish"), "pk")) == list(pks)
    assert in_table(STORED) == []
    assert tallies(STORED) == {"finished": len(pks)}
    assert list(lake.unfinished()) == []
