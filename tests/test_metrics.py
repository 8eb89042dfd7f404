"""What Prometheus scrapes: the same figures, for each alias, whatever is away."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import override_settings
from django.urls import path
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import ClaimRequest, ExecutorInfo, Header, NewMessage, Pause, SettleAction, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.metrics import DelayqCollector, metrics
from django_delayq.models import FigureRow
from django_delayq.monitor import kept, status
from django_delayq.store import figures, statistics
from django_delayq.store.statistics import Bounds
from django_delayq.support.timestamps import DAY_MS, HOUR_MS
from tests.brokers.rig import claim_some, settlement
from tests.commands.support import delayq
from tests.figure_rows import write_figures

MEMORY = "django_delayq.brokers.memory.MemoryBroker"
NOW = 1_800_000_000_000
urlpatterns = [path("metrics", metrics)]


@pytest.fixture(autouse=True)
def page(settings: Settings) -> None:
    """The site of this test, with two aliases: a store, and a broker alone."""
    settings.ROOT_URLCONF = __name__
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}}, "plain": {"BROKER": MEMORY, "STORE": None}}


def scraped() -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, in the order of their names. They are new ones."""
    kept.forget()
    response = Client().get("/metrics")
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(response.content.decode())
    samples = [sample for family in families for sample in family.samples]
    return {(one.name, *(value for _, value in sorted(one.labels.items()))): one.value for one in samples}


def run(using: str, id: str, verb: SettleAction) -> None:
    """A message that was sent and run."""
    broker = get_backend(using)
    broker.queue.enqueue([NewMessage(id, Header("mail", "k"), b"1", at_ms=0)])
    (claimed,) = claim_some(broker, [ClaimRequest("mail", "k", 1)])
    assert broker.queue.apply([settlement(claimed, verb)]) == [True]


@pytest.mark.django_db(transaction=True)
def test_the_figures_of_each_alias(settings: Settings) -> None:
    for using in ("default", "plain"):
        broker = get_backend(using)
        run(using, "done", SettleAction.FINISH)
        run(using, "buried", SettleAction.BURY)
        broker.queue.enqueue([NewMessage("a", Header("mail", 'k"\\<b>'), b"1", at_ms=0)])
        broker.presence.pause(Pause("mail", None, "x"))
        broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    seen = scraped()
    for using in ("default", "plain"):
        of = (using, 'k"\\<b>', "mail")
        for name, value in (("pending", 0), ("ready", 1), ("parked", 1), ("paused", 1)):
            assert seen[f"delayq_{name}", *of] == value
        for name, value in (("up", 1), ("broker_up", 1), ("workers", 1), ("running", 0), ("buried", 1)):
            assert seen[f"delayq_{name}", using] == value
        assert seen["delayq_buried_last_hour", using] == 1
    assert seen["delayq_retried", "default"] == 0
    assert abs(seen["delayq_broker_skew_seconds", "default"]) < 60
    assert seen["delayq_moves_total", "plain", "finished"] == 1
    assert ("delayq_moves_total", "default", "finished") not in seen
    assert ("delayq_retried", "plain") not in seen
    assert not [name for name in seen if name[0] == "delayq_pending_in_levels"]  # each broker here knows the sets


@pytest.mark.django_db(transaction=True)
def test_what_was_counted_in_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FULL", Bounds(pending=1, pile=1, least=2))
    get_backend("default").queue.enqueue(
        [NewMessage(id, Header("mail", id[0]), b"1", delay_ms=60_000) for id in ("a1", "a2", "b1")]
    )
    monkeypatch.setattr(statistics, "MOST", 4)
    seen = scraped()
    assert [seen["delayq_capped", "default", key, "mail"] for key in "ab"] == [1, 0]
    counted = ("delayq_in_part", "default")
    assert not any(seen[*counted, figure] for figure in ("buried", "buried_last_hour", "retried"))
    for id in "cdef":
        run("default", id, SettleAction.BURY)
    seen = scraped()
    assert [seen[*counted, figure] for figure in ("buried", "buried_last_hour", "retried")] == [1, 1, 0]
    assert "failed: 4+" in delayq("status")


@pytest.mark.django_db(transaction=True)
def test_more_queues_and_keys_than_have_figures_are_told_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MOST_PAIRS", 1)
    get_backend("default").queue.enqueue([NewMessage("a", Header("mail", "a"), b"1", delay_ms=60_000)])
    assert scraped()["delayq_in_part", "default", "waiting"] == 0
    get_backend("default").queue.enqueue([NewMessage("b", Header("mail", "b"), b"1", delay_ms=60_000)])
    seen = scraped()
    assert seen["delayq_in_part", "default", "waiting"] == 1
    assert ("delayq_pending", "default", "b", "mail") not in seen


@pytest.mark.django_db(transaction=True)
def test_a_time_to_drain_that_leaves_something_out_is_told_as_a_part() -> None:
    broker = get_backend("default")
    run("default", "done", SettleAction.FINISH)
    write_figures("default", NOW, queue="mail", period="total")
    broker.presence.heartbeat(
        WorkerInfo("w", ["mail"], ["k", "new"], 0, 0, executors=[ExecutorInfo(1, {"k": 1, "new": 1})])
    )
    broker.queue.enqueue([NewMessage("a", Header("mail", "k"), b"1", at_ms=0)])
    seen = scraped()
    assert ("delayq_drain_seconds", "default") in seen
    assert seen["delayq_in_part", "default", "drain_seconds"] == 0
    assert seen["delayq_workers_needed", "15m", "default"] == 1
    assert seen["delayq_in_part", "default", "workers_needed"] == 0
    broker.queue.enqueue([NewMessage("b", Header("mail", "new"), b"1", at_ms=0)])
    seen = scraped()
    assert (
        seen["delayq_in_part", "default", "drain_seconds"] == seen["delayq_in_part", "default", "workers_needed"] == 1
    )


@pytest.mark.django_db(transaction=True)
def test_the_workers_needed_are_left_out_while_they_are_not_known() -> None:
    broker = get_backend("default")
    broker.queue.enqueue([NewMessage("a", Header("mail", "k"), b"1", at_ms=0)])
    assert not [name for name in scraped() if "workers_needed" in name]  # no worker
    broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0, executors=[ExecutorInfo(1, {"k": 1})]))
    assert not [name for name in scraped() if "workers_needed" in name]  # no figures


@pytest.mark.django_db(transaction=True)
def test_what_workers_did_is_counted_by_queue_and_key() -> None:
    write_figures("default", NOW, queue="mail", number=3, late_ms=4, ran_ms=1_500)
    write_figures("default", NOW, SettleAction.RETRY, queue="mail", late_ms=10**7, ran_ms=2)
    write_figures("default", NOW, queue="mail", key='k"\\<b>')
    seen = scraped()
    for name, number in (("attempts", 4), ("finished", 3), ("failed", 1)):
        assert seen[f"delayq_{name}_total", "default", "k", "mail"] == number
    assert seen["delayq_attempts_total", "default", 'k"\\<b>', "mail"] == 1
    of_run = {le: value for (name, *_, key, le, _), value in _buckets(seen, "run_seconds").items() if key == "k"}
    assert [of_run[le] for le in ("0.002", "1.0", "5.0", "3600.0", "+Inf")] == [1, 1, 4, 4, 4]
    assert seen["delayq_run_seconds_sum", "default", "k", "mail"] == 4.502
    assert seen["delayq_run_seconds_count", "default", "k", "mail"] == 4
    of_late = {le: value for (name, *_, key, le, _), value in _buckets(seen, "lateness_seconds").items() if key == "k"}
    assert [of_late[le] for le in ("0.002", "0.005", "3600.0", "+Inf")] == [0, 3, 3, 4]
    assert not [name for name, alias, *_ in seen if alias == "plain" and name.startswith("delayq_run_")]


def _buckets(seen: dict[tuple[str, ...], float], name: str) -> dict[tuple[str, ...], float]:
    return {labels: value for labels, value in seen.items() if labels[0] == f"delayq_{name}_bucket"}


@pytest.mark.django_db(transaction=True)
def test_a_counter_does_not_fall_when_rows_are_rolled_up_and_pruned() -> None:
    store = get_backend("default").store
    assert store is not None
    for hour in range(1, 60):
        write_figures("default", NOW - hour * HOUR_MS, queue="mail", late_ms=hour, ran_ms=hour)

    def counted() -> dict[tuple[str, ...], float]:
        return {labels: value for labels, value in scraped().items() if labels[-1] == "mail"}

    before = counted()
    assert before["delayq_attempts_total", "default", "k", "mail"] == 59
    while figures.roll_up(store.database, NOW):
        assert counted() == before
    write_figures("default", NOW, queue="mail")
    write_figures("default", NOW + 29 * DAY_MS, queue="other")
    assert figures.roll_up(store.database, NOW + 29 * DAY_MS + HOUR_MS) == 2  # and old days are pruned
    assert not FigureRow.objects.filter(period="hour", queue="mail").exists()
    assert counted()["delayq_attempts_total", "default", "k", "mail"] == 60


@pytest.mark.django_db(transaction=True)
def test_the_number_of_counters_is_bounded_and_those_left_out_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_PAIRS", 2)
    for key in "bca":
        assert scraped()["delayq_in_part", "default", "attempts"] == 0
        write_figures("default", NOW, queue="mail", key=key)
    seen = scraped()
    assert [labels[2:] for labels in seen if labels[0] == "delayq_attempts_total"] == [
        ("a", "mail"),
        ("b", "mail"),
        ("", ""),
    ]
    assert seen["delayq_attempts_total", "default", "", ""] == 1
    assert seen["delayq_in_part", "default", "attempts"] == 1


def test_a_scrape_from_a_thread_of_its_own_leaves_no_connection_open(settings: Settings, sqlite_database: str) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}, "DATABASE": sqlite_database}}

    def scrape() -> bool:
        up = next(iter(DelayqCollector().collect())).samples[0].value
        return up == 1 and connections[sqlite_database].connection is None

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(scrape).result()


@pytest.mark.django_db(transaction=True)
def test_an_alias_that_is_away_is_told_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*arguments: object) -> None:
        raise BrokerUnavailable("nobody there")

    monkeypatch.setattr(get_backend("plain").queue, "counts", away)
    monkeypatch.setattr(get_backend("default").store.broker.presence, "workers", away)  # type: ignore[union-attr]
    seen = scraped()
    assert (seen["delayq_up", "plain"], seen["delayq_up", "default"]) == (0, 1)
    assert seen["delayq_broker_up", "default"] == 0
    assert ("delayq_workers", "default") not in seen
    assert ("delayq_broker_skew_seconds", "default") not in seen
    assert [name for name, alias, *_ in seen if alias == "plain"] == ["delayq_up"]


def test_registering_the_collector_asks_nobody() -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(DelayqCollector())  # without access to a database
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(DelayqCollector())


@pytest.mark.django_db(transaction=True)
def test_a_storm_of_scrapes_costs_one_look_at_each_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    look, now = status, [0.0]

    def counted(using: str, **options: Any) -> Any:
        looks.append(using)
        return look(using, **options)

    monkeypatch.setattr(kept, "status", counted)
    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: Client().get("/metrics").content, range(8)))
    assert len(set(answers)) == 1
    assert looks == ["default", "plain"]
    now[0] += kept.KEEP_S
    Client().get("/metrics")
    assert looks == ["default", "plain"] * 2


@pytest.mark.django_db(transaction=True)
def test_an_error_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away() -> None:
        asked.append("counts")
        raise BrokerUnavailable("nobody there")

    monkeypatch.setattr(get_backend("plain").queue, "counts", away)
    for _ in range(3):
        assert 'delayq_up{alias="plain"} 0' in Client().get("/metrics").content.decode()
    assert asked == ["counts"]


@override_settings(DELAYQ={})
def test_the_figures_are_only_read() -> None:
    assert Client().post("/metrics").status_code == 405


@override_settings(DELAYQ={})
def test_no_proxy_keeps_the_figures() -> None:
    response: Any = Client().get("/metrics")
    assert "no-store" in response["Cache-Control"]


def test_the_docs_name_every_figure() -> None:
    page = (Path(__file__).parent.parent / "docs/how-to/monitoring.md").read_text()
    named = set(re.findall(r"`(delayq_\w+)` ?[|,]", page))
    described = {metric.name + "_total" * (metric.type == "counter") for metric in DelayqCollector().describe()}
    assert named == described
