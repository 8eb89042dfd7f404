"""Ctrl-C in a terminal ends a job in a line, and nothing of it lives on."""

import faulthandler
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.spark.conftest import QUICK_START
from tests.spark.processes import PATIENCE_S, started, until_amid
from tests.spark.support import STORED

STOPPED = "CommandError: Stopped. What was done is whole, and the same job run again does the rest."
ENDLESS = "reflect('java.io.File', 'createTempFile', 'looked-at', '') = reflect('java.lang.Thread', 'sleep', 3600000L)"
"""As a filter: the first row that is looked at leaves a file, and then nothing goes on."""


@pytest.fixture
def options(spark_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return what a job's process has in its environment, whose Java puts temporary files into `tmp_path`."""
    java = f"{QUICK_START['spark.driver.extraJavaOptions']} -Djava.io.tmpdir={tmp_path}"
    settings = {**QUICK_START, "spark.driver.extraJavaOptions": java}
    (tmp_path / "spark-defaults.conf").write_text("\n".join(f"{name} {value}" for name, value in settings.items()))
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**env, **spark_env, "SPARK_CONF_DIR": str(tmp_path)}


def scheduling(options: dict[str, str], tmp_path: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    """A `schedule` that never ends."""
    (tmp_path / "rows.csv").write_text("id,on\n1,2096-11-21\n2,2096-11-21\n")
    rows = ["--from", str(tmp_path / "rows.csv"), "--where", ENDLESS, "--id", "id", "--master", "local[2]"]
    plan = ["--using", STORED, "--key", "note", "--due", "on || ' 09:00'", "--zone", "UTC"]
    command = [sys.executable, "-m", "django", "delayq_spark", "schedule", *plan, *rows]
    return started(command, options)


def starts_java(process: subprocess.Popen[str]) -> bool:
    return bool(psutil.Process(process.pid).children())


def looked_at(tmp_path: Path) -> bool:
    return any(tmp_path.glob("looked-at*"))


@pytest.mark.parametrize("amid", ["the start of Java", "its rows"])
def test_a_job_that_is_interrupted_says_so_in_a_line_and_leaves_nothing_running(
    options: dict[str, str], tmp_path: Path, amid: str
) -> None:
    faulthandler.cancel_dump_traceback_later()  # on a busy machine Java's start may take longer than any other test
    with scheduling(options, tmp_path) as process:
        until_amid(process, lambda: starts_java(process) if amid == "the start of Java" else looked_at(tmp_path))
        of_job = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        told, _ = process.communicate(timeout=PATIENCE_S)
        _, alive = psutil.wait_procs(of_job, timeout=PATIENCE_S)
    assert process.returncode == 130, told
    assert told.rstrip().endswith(STOPPED)
    assert "Traceback" not in told, told
    assert "Exception" not in told, told
    assert alive == []


def test_the_demo_that_is_interrupted_says_no_more_than_that(options: dict[str, str], tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()
    env = {name: value for name, value in options.items() if not name.startswith(("DJANGO", "DELAYQ"))}
    with started(
        [sys.executable, "-m", "example_project.spark_demo"], {**env, "SPARK_DEMO_VAR": str(tmp_path)}
    ) as demo:
        until_amid(demo, lambda: starts_java(demo))
        os.killpg(demo.pid, signal.SIGINT)
        told, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, told
    assert told.rstrip().endswith(STOPPED.removeprefix("CommandError: "))
    assert "Redis" not in told, told
