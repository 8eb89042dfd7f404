"""The benchmarks run, judge by their bounds, and tell by their exit code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.compare import install, report
from benchmarks.compare.contenders import CONTENDERS, Contender
from benchmarks.compare.report import Result
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


def test_the_comparison_drains_the_same_messages_by_ours_and_by_hand_and_writes_the_table(tmp_path: Path) -> None:
    if not servers.redis_binaries():
        servers.missing("redis-server")
    if servers.postgres_programs() is None:
        servers.missing("PostgreSQL")
    what = ["--only", "delayq", "by_hand", "--measures", "drain", "--scale", "0.002", "--rounds", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *what, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = (tmp_path / report.TABLE).read_text()
    assert written in ran.stdout
    assert written.count("/s") == 2, written
    assert "Not measured" not in written
    picture = ElementTree.parse(tmp_path / "drain-per_s.svg")  # noqa: S314
    assert {"django-delayq", "a loop by hand"} <= set(picture.getroot().itertext())


def test_the_comparison_divides_by_ours_within_a_round_and_tells_what_could_not_be_measured() -> None:
    def drained(round: str, name: str, per_s: float) -> Result:
        return Result(round, "drain", name, {"per_s": per_s})

    rounds = [("1", 1_000, 100), ("2", 2_000, 1_000), ("3", 500, 100)]
    text = report.text(
        [
            *(drained(round, "delayq_redis", ours) for round, ours, _ in rounds),
            *(drained(round, "rq", theirs) for round, _, theirs in rounds),
            Result("1", "install", "huey", error="there is no such version"),
        ]
    )
    ours, rq, huey = (next(line for line in text.splitlines() if title in line) for title in ("alone", "RQ", "Huey"))
    assert "1 (1,000/s ±75 %)" in ours
    assert "0.2 (100/s ±450 %)" in rq
    assert "–" in huey
    assert "**Not measured**, install: there is no such version." in text


def test_a_drain_that_was_over_within_a_millisecond_can_be_told() -> None:
    rates = {"delayq_redis": 1_000.0, "rq": 0.0}
    text = report.text([Result("1", "drain", name, {"per_s": per_s}) for name, per_s in rates.items()])
    assert "0 (0/s)" in next(line for line in text.splitlines() if "RQ" in line)


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_each_contender_has_an_adapter_with_all_that_is_asked_of_it(contender: Contender) -> None:
    if (install.REQUIREMENTS / contender.name / "package.json").exists():
        assert (install.HERE / "peers" / f"{contender.name}.mjs").exists()
        return
    adapter = (install.HERE / "peers" / f"{contender.name}.py").read_text()
    assert set(re.findall(r"\w+", adapter)) >= {"prepare", "send", "send_many", "worker"}
