"""Jobs on a cluster of Spark, by `spark-submit`: what dies there is run again, and each row is sent once."""

import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
import pytest
from django.db import transaction

from django_delayq import send_delay_message
from django_delayq.conf import get_alias
from django_delayq.models import ReadyMessage
from django_delayq.spark.java import java_home
from tests.docs.site import ROOT
from tests.servers.cluster import until
from tests.servers.spark import HOME, SparkMaster, SparkWorker
from tests.spark.conftest import OF_FEW_ROWS, QUICK_START
from tests.spark.processes import PATIENCE_S, started
from tests.spark.support import STORED

BATCH = int(OF_FEW_ROWS["spark.sql.execution.arrow.maxRecordsPerBatch"])
ROWS = 4 * BATCH
DONE = 2 * BATCH
"""Rows that were sent when the executor is killed."""


@pytest.fixture
def env(spark_env: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """What Spark's programs have in their environment: Java as the extra brings it, and the site."""
    quick = QUICK_START["spark.driver.extraJavaOptions"]
    settings = {**QUICK_START, **OF_FEW_ROWS, "spark.executor.extraJavaOptions": quick, "spark.executor.memory": "512m"}
    (tmp_path / "spark-defaults.conf").write_text("\n".join(f"{name} {value}" for name, value in settings.items()))
    with java_home() as home:
        java = {"JAVA_HOME": home} if home else {}
        yield {
            **java,
            **spark_env,
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(tmp_path),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": quick,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }


@pytest.fixture
def worker(env: dict[str, str]) -> Iterator[SparkWorker]:
    """The one worker of a cluster."""
    faulthandler.cancel_dump_traceback_later()  # on a busy machine Java's starts may take longer than any other test
    master = SparkMaster(env)
    try:
        worker = SparkWorker(env, master.url)
        try:
            yield worker
        finally:
            worker.close()
    finally:
        master.close()


def submitted(master: str, env: dict[str, str], *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A job."""
    command = [str(HOME / "bin/spark-submit"), "--master", master, "manage.py", "delayq_spark", *arguments]
    return started(command, {**os.environ, **env})


def kill_executor(worker: SparkWorker) -> None:
    """SIGKILL, and return when its Python processes have ended too."""
    of_worker = psutil.Process(worker.pid).children(recursive=True)
    for each in psutil.Process(worker.pid).children():
        with suppress(psutil.NoSuchProcess):  # beside the executor the worker starts what ends by itself
            each.kill()
    _, alive = psutil.wait_procs(of_worker, timeout=PATIENCE_S)
    assert alive == []


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
            until(lambda: job.poll() is not None or ready.count() == DONE + 1)
            assert job.poll() is None, job.communicate()[0]
            kill_executor(worker)
            transaction.set_rollback(True, using)
        told, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, told
    assert f"Read {ROWS}, sent {ROWS - DONE}, there already {DONE}, quarantined 0" in told
    assert ready.count() == ROWS
