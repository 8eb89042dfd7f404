"""Fair shares: among the rows that are due, the shares of a handler take turns."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connections
from django.db.models import BigIntegerField, F, Min
from django.db.models.functions import Cast, Substr
from django.test.utils import CaptureQueriesContext

from django_delayq import Message, delay_execute, get_delay_message, list_delay_messages, send_delay_messages
from django_delayq.admin.message.edit import change_waiting
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import Claimed, ClaimRequest
from django_delayq.core import transitions
from django_delayq.core.shares import Shares
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.monitor.explain import explain
from django_delayq.store import DatabaseBackend, shares as module
from django_delayq.store.polling import TableClaims
from django_delayq.worker.attempt import begin
from tests.store.support import LEASE_MS


@pytest.fixture
def stored_delayq(alone_delayq: dict[str, Any]) -> dict[str, Any]:
    return alone_delayq


@pytest.fixture
def handler(registry: None, broker: DatabaseBackend) -> Handler[Any, None]:
    @delay_execute("k", share_key="shop:{shop}")
    def handle(message: Message[dict[str, Any]]) -> None: ...

    return handle


def _send(handler: Handler[Any, None], shop: str, count: int) -> None:
    send_delay_messages(handler.prepare({"shop": shop}, id=f"{shop}{n:04}") for n in range(count))


def _all_due(database: str) -> None:
    """Let all have been due for a while, in the order in which they were sent."""
    rows = ReadyMessage.objects.using(database)
    # Keys go on from what earlier tests drew, so they count from the first of these.
    first = rows.aggregate(first=Min("pk"))["first"]
    rows.update(due_at=F("sent_at") - 60_000 + F("pk") - first)


def _send_due(handler: Handler[Any, None], database: str, shops: str) -> list[str]:
    """Send messages of these shops that have been due for a while, and return their ids in due order."""
    ids = [f"{shop}{n:04}" for n, shop in enumerate(shops)]
    send_delay_messages(handler.prepare({"shop": id[0]}, id=id) for id in ids)
    place = Cast(Substr("message_id", 2), BigIntegerField())
    ReadyMessage.objects.using(database).update(due_at=F("sent_at") - 60_000 + place * 10)
    return ids


def _send_now(handler: Handler[Any, None], database: str, ids: list[str]) -> None:
    send_delay_messages(handler.prepare({"shop": id[0]}, id=id) for id in ids)
    ReadyMessage.objects.using(database).filter(message_id__in=ids).update(due_at=F("due_at") - 5)


def _claim(claims: TableClaims, count: int, shares: Shares | None = Shares("shop:{shop}")) -> list[Claimed]:  # noqa: B008
    found, _ = claims.claim([ClaimRequest("default", "k", count, shares=shares)], LEASE_MS, "w")
    return found.messages


def _shops(messages: Sequence[Claimed]) -> Counter[str]:
    return Counter(one.id[0] for one in messages)


def test_a_row_keeps_its_share_through_all_that_becomes_of_it(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    handler.send({"shop": "a"}, id="1")
    handler.send({"shop": "b"}, id="1", on_conflict="replace")
    assert ReadyMessage.objects.using(database).get().share == "shop:b"
    _all_due(database)
    (claimed,) = _claim(TableClaims(broker.database), 1)
    assert claimed.header is not None
    assert claimed.header.share == "shop:b"
    broker.queue.apply([transitions.bury(claimed, transitions.Failure("no", "trace", "kind"))])
    assert ErrorMessage.objects.using(database).get().share == "shop:b"
    broker.queue.rescue(["1"])
    assert ReadyMessage.objects.using(database).get().share == "shop:b"
    (claimed,) = _claim(TableClaims(broker.database), 1)
    broker.queue.apply([transitions.finish(claimed)])
    assert FinishMessage.objects.using(database).get().share == "shop:b"


def test_handlers_and_callers_are_told_the_share(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    handler.send({"shop": "a"}, id="1")
    _all_due(database)
    waiting = get_delay_message("1")
    assert waiting is not None
    assert waiting.share == "shop:a"
    assert [info.share for info in list_delay_messages()] == ["shop:a"]
    (claimed,) = _claim(TableClaims(broker.database), 1)
    message = begin(claimed, handler, claimed.due_ms, lambda: True)
    assert isinstance(message, Message)
    assert message.share == "shop:a"


def test_changed_data_is_of_another_share_and_explain_names_it(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    handler.send({"shop": "a"}, id="1")
    change_waiting(ReadyMessage.objects.using(database).get(), {"shop": "b"})
    explanation = explain("1")
    assert explanation is not None
    assert explanation.info.header.share == "shop:b"


def test_shares_take_turns_and_keep_their_order(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    for shop, count in ("a", 200), ("b", 30), ("c", 5):
        _send(handler, shop, count)
    _all_due(database)
    claims = TableClaims(broker.database)
    ids = [one.id for _ in range(4) for one in _claim(claims, 40)]
    shops = Counter(id[0] for id in ids)
    assert (shops["b"], shops["c"]) == (30, 5)
    assert shops["a"] >= 60
    for shop in "abc":
        own = [id for id in ids if id[0] == shop]
        assert own == sorted(own)
    assert len({id[0] for id in ids[10:13]}) > 1, "within a claim they alternate"


def test_weights_are_kept(handler: Handler[Any, None], broker: DatabaseBackend, database: str) -> None:
    for shop in "ab":
        _send(handler, shop, 150)
    _all_due(database)
    claims, shares = TableClaims(broker.database), Shares("shop:{shop}", {"shop:a": 3})
    _claim(claims, 10, shares)  # this one begins with what was due first
    given = _shops([one for _ in range(2) for one in _claim(claims, 40, shares)])
    assert given == {"a": 60, "b": 20}


def test_a_share_that_becomes_due_is_next_however_many_of_another_are_due(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send(handler, "a", 200)
    _all_due(database)
    monkeypatch.setattr(module, "SCAN_S", 3_600.0)  # no scan finds it
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    claims = TableClaims(broker.database)
    assert _shops(_claim(claims, 20)) == {"a": 20}
    _send_now(handler, database, ["b0000", "b0001", "b0002"])
    assert _shops(_claim(claims, 20)) == {"a": 17, "b": 3}
    assert _shops(_claim(claims, 20)) == {"a": 20}


def test_mixed_shares_are_claimed_in_due_order(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    ids = _send_due(handler, database, "aab" * 60)
    claims = TableClaims(broker.database)
    with CaptureQueriesContext(connections[database]) as captured:
        assert [one.id for _ in range(4) for one in _claim(claims, 20)] == ids[:80]
    assert not any("AS numbered0" in query["sql"] and "r.share =" in query["sql"] for query in captured)


@pytest.mark.parametrize(
    ("shops", "small", "claims_of_20"),
    [("ab" * 30 + "c" * 300 + "ab" * 30, {"a": 60, "b": 60}, 13), ("ab" * 200 + "c" * 50, {"c": 50}, 9)],
)
def test_shares_take_turns_where_due_order_is_not_mixed(
    handler: Handler[Any, None],
    broker: DatabaseBackend,
    database: str,
    shops: str,
    small: dict[str, int],
    claims_of_20: int,
) -> None:
    _send_due(handler, database, shops)
    claims = TableClaims(broker.database)
    given = _shops([one for _ in range(claims_of_20) for one in _claim(claims, 20)])
    assert {shop: given[shop] for shop in small} == small


def test_a_share_whose_rows_were_all_claimed_in_due_order_comes_next_when_one_more_is_due(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = _send_due(handler, database, "ac" * 6 + "abcabc" + "ac" * 100)
    monkeypatch.setattr(module, "SCAN_S", 3_600.0)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    claims = TableClaims(broker.database)
    assert [one.id for one in _claim(claims, 20)] == ids[:20]
    _send_now(handler, database, ["b90", "b91", "b92"])
    assert [one.id for one in _claim(claims, 20)] == ["b90", "b91", "b92", *ids[20:37]]
    _send_now(handler, database, ["b93"])
    request = [ClaimRequest("default", "k", 1, shares=Shares("shop:{shop}"))]
    given = [claims.claim(request, LEASE_MS, "w") for _ in range(2)]
    assert "b93" in [one.id for found, _ in given for one in found.messages]
    assert all(full for _, full in given), "more is due, also if a claim had room for that share alone"


def test_rows_without_a_share_are_not_left_behind(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shop in "abx":
        _send(handler, shop, 20)
    _all_due(database)
    ReadyMessage.objects.using(database).filter(message_id__startswith="x").update(share=None)
    claims = TableClaims(broker.database)
    assert _shops([one for _ in range(8) for one in _claim(claims, 10)]) == {"a": 20, "b": 20, "x": 20}


def test_no_more_at_most_once_messages_are_leased_than_start_at_once(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    for shop in "ab":
        _send(handler, shop, 20)
    _all_due(database)
    ReadyMessage.objects.using(database).update(at_most_once=True)
    request = ClaimRequest("default", "k", 30, idle_slots=3, shares=Shares("shop:{shop}"))
    found, _ = TableClaims(broker.database).claim([request], LEASE_MS, "w")
    assert len(found.messages) <= 3


@pytest.mark.alters_tables
@pytest.mark.parametrize("database", ["postgres_database"], indirect=True)
@pytest.mark.parametrize("known", ["", "VACUUM ANALYZE delayq_ready"])
def test_claims_in_turn_and_the_scan_for_shares_read_by_the_index_of_shares_alone(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str, known: str
) -> None:
    _send(handler, "a", 4_000)
    for shop in "bc":
        _send(handler, shop, 5)
    _all_due(database)
    if known:
        with connections[database].cursor() as cursor:
            cursor.execute(known)
    with CaptureQueriesContext(connections[database]) as captured:
        _claim(TableClaims(broker.database), 20)
    statements = [query["sql"] for query in captured if "of_turn" in query["sql"] or "RECURSIVE" in query["sql"]]
    assert len(statements) == 2
    for statement in statements:
        with connections[database].cursor() as cursor:
            cursor.execute(f"EXPLAIN {statement}")
            plan = "\n".join(row for (row,) in cursor.fetchall())
        assert set(re.findall(r"delayq_ready_\w+", plan)) - {"delayq_ready_pkey"} == {"delayq_ready_share"}
        assert "Seq Scan" not in plan


def test_who_has_no_shares_gives_no_statement_about_them(
    handler: Handler[Any, None], broker: DatabaseBackend, database: str
) -> None:
    _send(handler, "a", 20)
    _all_due(database)
    with CaptureQueriesContext(connections[database]) as captured:
        assert len(_claim(TableClaims(broker.database), 20, None)) == 20
    assert not any("delayq_ready_share" in query["sql"] or "r.share" in query["sql"] for query in captured)
