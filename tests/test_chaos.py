"""The judge of `make chaos` finds what is wrong in a ledger, and a short, mild round of it finds nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import faults, judge, ledger
from tests.chaos.judge import CHECKS, Round
from tests.chaos.ledger import Ledger, PermitRequest, Run, Span
from tests.chaos.places import Place, place
from tests.chaos.plan import Plan, Step
from tests.chaos.round import run_round
from tests.servers import SqliteFiles
from tests.worker.processes import PATIENCE_S

WALL = 1_000_000.0
"""The machine's clock at 0 s."""


def send(id: str = "a", at: float = 10, key: str = "plain", delay: float = 0, ok: bool | None = True) -> PermitRequest:
    """Return a send that was answered at once."""
    due_ms = int(WALL + 1000 * (at + delay))
    return PermitRequest(id, "send", at, WALL + 1000 * at, key, delay, ok=ok, counted=True, due_ms=due_ms, answered=at)


def run(
    id: str = "a", begin: float = 11, until: float = 12, key: str = "plain", pid: int = 1, how: str = "returned"
) -> Run:
    """Return a run of what was due a second before."""
    wall = WALL + 1000 * begin
    return Run(id, key, 1, [pid], begin=begin, wall=wall, due_ms=int(wall) - 1000, until=until, how=how)


def finished(*ids: str) -> list[tuple[str, str]]:
    return [(id, "finished") for id in ids]


FROZEN = Span("frozen", 11, 19, pids=[1])
LATER = run(begin=13, until=14, pid=2)
KILLED = Span("killed", 11.5, 11.5, pids=[1])
AWAY = Span("kill redis", 10, 17, excuses=[(10, 17)])
ONCE, EXACT, WRITE = (send(key=key) for key in ("once", "exact", "write"))
CANCEL = PermitRequest("a", "cancel", at=10.5, ok=True, counted=True, answered=10.5)

WRONG = {
    "early": (judge.early, Round(Ledger([send(delay=2)], [replace(run(), due_ms=0)]), ends=finished("a"))),
    "earlier than it was due": (
        judge.early,
        Round(Ledger([send()], [replace(run(), due_ms=int(WALL) + 11_001)]), ends=finished("a")),
    ),
    "early, put off by a reschedule": (
        judge.early,
        Round(
            Ledger(
                [send(), replace(send(at=10.1, delay=5), verb="reschedule")],
                [replace(run(), due_ms=0)],
            ),
            ends=finished("a"),
        ),
    ),
    "lost": (judge.lost, Round(Ledger([send()]))),
    "lost though it ran": (judge.lost, Round(Ledger([send()], [run()]))),
    "left": (judge.lost, Round(Ledger([send()]), waiting=["a"])),
    "lost after Redis was emptied": (
        judge.lost,
        Round(Ledger([send(at=12)], spans=[Span("redis lost", 11, 11)]), is_stored=False),
    ),
    "lost with a store, though Redis was emptied": (
        judge.lost,
        Round(Ledger([send()], spans=[Span("redis lost", 11, 11)])),
    ),
    "lost without a store": (judge.lost, Round(Ledger([send()], [run(how="")]), is_stored=False)),
    "rolled back, and ran": (judge.made_up, Round(Ledger([send(ok=False)], [run()]))),
    "ended twice": (judge.made_up, Round(Ledger([send()], [run(), LATER]), ends=finished("a", "a"))),
    "finished without a run": (judge.made_up, Round(Ledger([send()]), ends=finished("a"))),
    "two leases": (
        judge.overlapping,
        Round(Ledger([send()], [run(until=15), LATER], [replace(FROZEN, pids=[2])]), ends=finished("a")),
    ),
    "at most once, twice": (
        judge.twice,
        Round(Ledger([ONCE], [run(key="once", how=""), replace(LATER, key="once")], [KILLED]), ends=finished("a")),
    ),
    "again for nothing": (judge.twice, Round(Ledger([send()], [run(), LATER]), ends=finished("a"))),
    "at most once, done and failed": (
        judge.failed,
        Round(Ledger([ONCE], [run(key="once")]), ends=[("a", "error")]),
    ),
    "finished by a slot that had lost its lease": (
        judge.finished_by_a_late_hand,
        Round(
            Ledger([send()], [run(until=13.5), run(begin=12, until=19, pid=2)], [FROZEN]),
            ends=finished("a"),
            finishes=[("a", int(WALL) + 13_500)],
        ),
    ),
    "failed before its time": (judge.failed, Round(Ledger([send()], [run(how="raised")]), ends=[("a", "error")])),
    "two effects": (
        judge.effects,
        Round(Ledger([EXACT], [run(key="exact")]), ends=finished("a"), effects=["a", "a"]),
    ),
    "no effect": (judge.effects, Round(Ledger([EXACT], [run(key="exact")]), ends=finished("a"))),
    "a lost row": (judge.effects, Round(Ledger([WRITE], [run(key="write")]), ends=finished("a"))),
    "two of one": (
        judge.crowded,
        Round(
            Ledger(
                [send("a", key="single"), send("b", key="single")],
                [run("a", until=14, key="single"), run("b", begin=13, until=15, key="single", pid=2)],
            ),
            ends=finished("a", "b"),
        ),
    ),
    "late": (judge.late, Round(Ledger([send()], [run(begin=20, until=21)]), ends=finished("a"))),
    "late, longer than excused": (
        judge.late,
        Round(Ledger([send()], [run(begin=22, until=23)], [AWAY]), ends=finished("a")),
    ),
    "cancelled, and ran": (
        judge.cancelled,
        Round(Ledger([send(), CANCEL], [run()]), ends=finished("a")),
    ),
    "due at 0": (judge.no_due_time, Round(Ledger([replace(send(), due_ms=0)], [run()]), ends=finished("a"))),
    "audited": (judge.audit, Round(Ledger(), differences=["message 'a' is in two tables"])),
    "noted": (judge.noted, Round(Ledger(findings=["A worker ended by itself"]))),
}

RIGHT = {
    "nothing at all": Round(Ledger()),
    "finished": Round(Ledger([send()], [run()]), ends=finished("a")),
    "refused, and nowhere": Round(Ledger([send(ok=False)])),
    "unknown, and nowhere": Round(Ledger([send(ok=None)])),
    "unknown, and finished": Round(Ledger([send(ok=None)], [run()]), ends=finished("a")),
    "again, after its worker was killed": Round(
        Ledger([send()], [run(how=""), replace(LATER, begin=19, until=20)], [KILLED]), ends=finished("a")
    ),
    "two runs, for the first was frozen": Round(
        Ledger([send()], [run(until=19.5), LATER], [FROZEN]), ends=finished("a")
    ),
    "two runs, for the row of the first was locked": Round(
        Ledger([send()], [run(until=19.5), LATER], [Span("lock rows", 11, 12.9)]), ends=finished("a")
    ),
    "again, for its finish was refused": Round(
        Ledger([send()], [run(), LATER], [Span("refuse finishes", 10, 12)]), ends=finished("a")
    ),
    "lost, for Redis was emptied and there is no store": Round(
        Ledger([send(), WRITE], spans=[Span("redis lost", 11, 11)]), is_stored=False
    ),
    "late, for Redis was away": Round(Ledger([send()], [run(begin=20, until=21)], [AWAY]), ends=finished("a")),
    "early by the machine's clock, for the database's was put ahead": Round(
        Ledger([send(delay=20)], [replace(run(), due_ms=int(WALL) + 30_000)], clocks=[(10.2, 30_000)]),
        ends=finished("a"),
    ),
    "finished when its newest run returned": Round(
        Ledger([send()], [run(until=13.5), run(begin=12, until=19, pid=2)], [FROZEN]),
        ends=finished("a"),
        finishes=[("a", int(WALL) + 19_000)],
    ),
    "finished by the clock that it was claimed by, which was put ahead since": Round(
        Ledger([send()], [run()], clocks=[(10.2, 30_000)]), ends=finished("a"), finishes=[("a", int(WALL) + 12_000)]
    ),
    "an effect": Round(Ledger([EXACT], [run(key="exact")]), ends=finished("a"), effects=["a"]),
    "failed in the end": Round(
        Ledger([send(key="doomed")], [run(key="doomed", how="raised"), replace(LATER, key="doomed", how="raised")]),
        ends=[("a", "error")],
    ),
    "cancelled in time": Round(Ledger([send(), CANCEL]), ends=[("a", "cancelled")]),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_finds_what_is_wrong(name: str) -> None:
    check, round = WRONG[name]
    assert list(check(round))
    assert set(check(round)) <= set(judge.judge(round))


def test_each_check_of_the_judge_is_seen_to_find_something() -> None:
    assert {check for check, _ in WRONG.values()} == set(CHECKS)


@pytest.mark.parametrize("name", RIGHT)
def test_the_judge_finds_nothing_where_all_is_right(name: str) -> None:
    assert judge.judge(RIGHT[name]) == []


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.VARIABLE, str(tmp_path / "ledger"))
    who = {"id": "a", "token": 7, "pids": [1, 2]}
    ledger.write("ask", number="1", verb="send", id="a", key="slow", delay=0.5)
    ledger.write("answer", number="1", ok=True, counted=True, due_ms=5)
    ledger.write("start", key="slow", attempt=1, due_ms=5, **who)
    ledger.write("beat", **who)
    ledger.write("span", name="killed", begin=1, end=2, pids=[1])
    ledger.put_clock(30_000)
    ledger.write("finding", text="wrong")
    found = ledger.read(tmp_path / "ledger")
    ((ask,), (one,), (span,)) = found.asks, found.runs, found.spans
    assert (ask.key, ask.delay, ask.ok, ask.counted, ask.due_ms) == ("slow", 0.5, True, True, 5)
    assert ask.at < ask.answered < one.begin < one.until < found.clocks[0][0]
    assert (one.token, one.how, span.name, span.pids) == (7, "", "killed", [1])
    assert (found.clocks[0][1], found.findings, ledger.skew_ms()) == (30_000, ["wrong"], 30_000)


def test_a_plan_is_the_same_for_the_same_seed_and_another_for_another(tmp_path: Path) -> None:
    here = Place("", "", [], SqliteFiles(tmp_path), tmp_path)
    plan = Plan(1, 1, "sqlite", 60)
    assert str(plan.steps(here)) == str(plan.steps(here)) != str(replace(plan, seed=2).steps(here))
    assert str(plan.steps(here)) != str(replace(plan, number=2).steps(here))


def mild(at: float, do: faults.Harm, seconds: float = 0) -> Step:
    """Return a step of a fault that excuses nothing."""
    return Step(at, faults.Fault(do, 0, faults.never, faults.always), seconds)


MILD = {
    "workers": [mild(1, faults.kill_a_worker)],
    "redis": [mild(1, faults.cut_redis), mild(2, faults.forget_scripts)],
    "database": [mild(0.5, faults.hold_a_snapshot, 2)],
}


def test_a_short_round_of_mild_faults_breaks_no_promise(tmp_path: Path) -> None:
    # Of this seed the workers are two, with threads alone: they start soon.
    plan = Plan(seed=51, number=1, place="sqlite", seconds=4, longest_s=1)
    with place(plan.place, plan.draw("place"), tmp_path) as found:
        found.keys = [key for key in found.keys if key != "slow"]
        seen = run_round(found, plan, MILD)
    seen.late_s = PATIENCE_S  # how late it is under load is no matter of this test
    assert len(seen.ledger.runs) > 10
    assert judge.judge(seen) == []
