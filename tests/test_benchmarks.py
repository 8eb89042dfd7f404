"""The benchmarks run, judge by their bounds, and tell by their exit code."""

import os
import subprocess
import sys

import pytest

from benchmarks.__main__ import main
from benchmarks.result import at_least, at_most, table
from tests import servers


def test_a_missed_bound_is_short() -> None:
    text = table([at_least("ratio", 0.79, 0.8), at_most("lateness", 5.1, 5, "ms"), at_most("early", 0, 0, "messages")])
    assert [line.split()[-1] for line in text.splitlines()[1:]] == ["short", "short", "ok"]


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sned"]) == 2
    assert "'sned'" in capsys.readouterr().err


def test_a_waiting_message_takes_no_more_memory_than_promised_and_leaves_none() -> None:
    if not servers.redis_binaries():
        servers.missing("redis-server")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "memory"],
        env={**os.environ, "DELAYQ_SCALE": "0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_trip_counts_the_files_that_a_send_its_commit_and_a_drain_enter() -> None:
    if not servers.redis_binaries():
        servers.missing("redis-server")
    if servers.postgres_programs() is None:
        servers.missing("PostgreSQL")
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "trip"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr  # a goal that is not reached is no failure of this
    send, rest = ran.stdout.split("its commit:\n")
    commit, drain = rest.split("a drain of one message:\n")
    assert "api/send.py" in send
    assert "store/enqueue.py" in commit
    assert "worker/attempt.py" in drain  # also what threads enter
    assert drain.count("files entered") == 3
    assert "moves between files" in drain
