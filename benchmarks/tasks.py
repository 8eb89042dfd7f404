"""Measure Django's tasks: how late they start while millions are deferred, and a drain beside other backends.

The backends run by the adapters of `benchmarks.compare`, which installs those that are not ours.
"""

from dataclasses import replace
from statistics import median

from benchmarks.compare.contenders import BY_NAME, Contender
from benchmarks.compare.install import NotInstalledError, driver
from benchmarks.compare.measures import Sizes, drain, lateness, send
from benchmarks.compare.stage import Servers, Stage, prepared, servers
from benchmarks.rates import ROUNDS, Rates
from benchmarks.result import Result, at_least, at_most
from benchmarks.scale import scaled
from benchmarks.stored_rows import insert_waiting

OURS = BY_NAME["delayq_tasks"]
PEERS = (BY_NAME["django_tasks_db"], BY_NAME["django_ox"])
DJANGOS = (
    Contender("django_immediate", "Django's ImmediateBackend", "nothing", OURS.name, "defaults"),
    Contender("django_dummy", "Django's DummyBackend", "nothing", OURS.name, "defaults"),
)
"""Django's own backends, which have no worker: one runs a task where it is enqueued, the other never."""


def run() -> list[Result]:
    """Return the lateness, the ratios of drains, and those of enqueuing beside Django's own backends."""
    with servers() as private:
        return [*_lateness(private), *_drains(private), *_sends(private)]


def _lateness(private: Servers) -> list[Result]:
    waiting = scaled(5_000_000, least=1_000)
    sizes = Sizes(paced_s=scaled(10, least=2), per_s=200)
    stage = prepared(private, OURS, driver(OURS.name))()
    with private.postgres.client(stage.database) as client:
        insert_waiting(client, waiting)
    stage.settle_tables()
    rounds = [_lateness_of(stage, sizes) for _ in range(ROUNDS)]
    p50, p99 = (median(each[name] for each in rounds) for name in ("p50_ms", "p99_ms"))
    told = " ".join(f"{each['p99_ms']:.1f}" for each in rounds)
    what = f"run_after at {sizes.per_s:g} tasks/s, {waiting:,} deferred: p99"
    return [
        at_most(what, p99, 25, "ms", f"p50 {p50:.2f} ms; rounds {told}"),
        at_most("early", sum(each["early"] for each in rounds), 0, "tasks"),
    ]


def _lateness_of(stage: Stage, sizes: Sizes) -> dict[str, float]:
    stage.runs.unlink(missing_ok=True)
    return lateness(lambda: stage, sizes)


def _drains(private: Servers) -> list[Result]:
    return [_drains_beside(private, peer) for peer in PEERS]


def _drains_beside(private: Servers, peer: Contender) -> Result:
    what = f"drain / {peer.title}"
    sizes = replace(Sizes(), drained=scaled(50_000, least=1_000))
    try:
        theirs = prepared(private, peer, driver(peer.name))
    except NotInstalledError as error:
        return Result(what, "not measured", "at least 10", False, str(error))
    ours = prepared(private, OURS, driver(OURS.name))
    rounds = [(drain(ours, sizes)["per_s"], drain(theirs, sizes)["per_s"]) for _ in range(ROUNDS)]
    rates = Rates(*map(list, zip(*rounds, strict=True)))
    return at_least(what, rates.ratio, 10, str(rates))


def _sends(private: Servers) -> list[Result]:
    sizes = replace(Sizes(), sent=scaled(2_000, least=100))
    ours = _send_rate(private, OURS, sizes)
    results = []
    for django in DJANGOS:
        theirs = _send_rate(private, django, sizes)
        told = f"{ours:,.0f}/s against {theirs:,.0f}/s"
        results.append(Result(f"enqueue / {django.title}", f"{ours / theirs:.3f}", "none", True, told))
    return results


def _send_rate(private: Servers, contender: Contender, sizes: Sizes) -> float:
    fresh = prepared(private, contender, driver(contender.name))
    return median(send(fresh, sizes)["per_s"] for _ in range(ROUNDS))
