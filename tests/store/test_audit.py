"""The audit of a store: what it names, what it mends, and what it lets be."""

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import F
from pytest_django import Settings

from django_delayq import cancel_delay_messages, send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.models import FinishMessage, ReadyMessage, Tally
from django_delayq.store import DatabaseBackend
from django_delayq.store.alarms import schedule_window
from django_delayq.store.polling import LATE_MS, Sweep
from django_delayq.support.timestamps import HOUR_MS
from tests.brokers.rig import settlement
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, alarms, claim, window_of


def _audit(*options: str) -> dict[str, Any]:
    """Return what `delayq audit --json` says, whatever its exit code."""
    out = io.StringIO()
    with suppress(CommandError):
        call_command("delayq", "audit", "--json", *options, stdout=out)
    seen: dict[str, Any] = json.loads(out.getvalue())
    return seen


def _place(broker: DatabaseBackend, *ids: str, **options: Any) -> None:
    for id in ids:
        send_delay_message("k", 1, id=id, delay="10m", **options)
    window_of(broker).set_cursor_back(broker.database.now_ms())
    schedule_window(broker.database, window_of(broker), HOUR_MS)


def _forget_alarms(redis_server: Server) -> None:
    with redis_server.client() as client:
        client.delete("{delayq:0}:wait:default:k")


def test_in_every_state_all_adds_up(broker: DatabaseBackend) -> None:
    _place(broker, "waiting")
    send_delay_message("k", 1, id="far", delay="30d")
    for id in ("finished", "buried", "held"):
        send_delay_message("k", 1, id=id)
    held = {one.id: one for one in claim(broker)}
    broker.queue.apply(
        [settlement(held["finished"], SettleAction.FINISH), settlement(held["buried"], SettleAction.BURY)]
    )
    seen = _audit()
    assert (seen["ok"], seen["differences"], seen["notes"]) == (True, [], [])
    assert seen["places"] == {"pending": 2, "ready": 0, "running": 1, "error": 1}
    assert (seen["totals"]["sent"], seen["totals"]["finished"]) == (5, 1)


def test_a_lease_that_no_worker_takes_is_named(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    claim(broker)
    held = ReadyMessage.objects.using(database)
    held.update(lease_until=F("lease_until") + 900 * 86_400_000, worker="nobody")
    (difference,) = _audit()["differences"]
    assert difference.startswith("message 'a' is leased to 'nobody' for 900d")
    assert "though a lease is 15s" in difference
    held.update(lease_until=F("lease_until") - 900 * 86_400_000)
    assert _audit()["ok"]


def test_a_row_before_the_cursor_without_an_alarm_is_named_and_mended(
    broker: DatabaseBackend, redis_server: Server
) -> None:
    _place(broker, "a", "b")
    _forget_alarms(redis_server)
    seen = _audit()
    assert not seen["ok"]
    assert seen["differences"] == [
        "message 'a' is due before the cursor, and the broker has no alarm for it in time",
        "message 'b' is due before the cursor, and the broker has no alarm for it in time",
    ]
    seen = _audit("--repair")
    assert (seen["ok"], len(seen["repaired"])) == (True, 2)
    assert alarms(broker) == 2
    assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []  # for when it is due
    assert _audit("--repair")["repaired"] == []


def test_a_row_after_the_cursor_is_the_next_pass_s_and_one_that_is_held_its_holders(
    broker: DatabaseBackend, redis_server: Server
) -> None:
    send_delay_message("k", 1, id="later", delay="10m")
    send_delay_message("k", 1, id="held")
    claim(broker)
    with redis_server.client() as client:
        client.delete("{delayq:0}:running")
    assert _audit()["differences"] == []


def test_a_row_whose_worker_died_needs_no_alarm(broker: DatabaseBackend, redis_server: Server, database: str) -> None:
    send_delay_message("k", 1, id="a")
    claim(broker)
    ReadyMessage.objects.using(database).update(lease_until=F("due_at"), due_at=F("due_at") - LATE_MS)
    with redis_server.client() as client:
        client.delete("{delayq:0}:running")
    assert _audit()["ok"], "it is overdue: workers claim it from the table"
    broker.queue.backlog |= Sweep(broker.database).find(WANT)
    assert [one.id for one in claim(broker)] == ["a"]


def test_alarms_are_held_against_rows_a_page_at_a_time(
    broker: DatabaseBackend, redis_server: Server, database: str
) -> None:
    _place(broker, "a")
    row = ReadyMessage.objects.using(database).values().get()
    rows = [ReadyMessage(**row | {"id": None, "message_id": f"{n}"}) for n in range(2_500)]
    ReadyMessage.objects.using(database).bulk_create(rows)
    assert len(_audit("--repair")["repaired"]) == 2_500
    assert alarms(broker) == 2_501
    assert _audit()["ok"]


def test_what_a_cancel_leaves_behind_is_noted_and_no_difference(broker: DatabaseBackend) -> None:
    _place(broker, "a", "b")
    cancel_delay_messages("a")
    seen = _audit()
    assert (seen["ok"], seen["differences"]) == (True, [])
    assert seen["notes"] == ["alarms of messages that are gone: 1 (harmless); each is dropped when it is due"]


def test_a_row_in_two_tables_is_named_and_left_to_people(broker: DatabaseBackend, database: str) -> None:
    _place(broker, "a")
    row: dict[str, Any] = {**ReadyMessage.objects.using(database).values().get()}
    shared = {field.name: row[field.name] for field in FinishMessage._meta.fields if field.name in row}
    FinishMessage.objects.using(database).create(**shared, outcome="finished", ended_at=row["due_at"])
    seen = _audit("--repair")
    assert seen["differences"] == ["message 'a' is in the tables ready and finish"]
    assert seen["repaired"] == []


@pytest.mark.parametrize(("name", "count"), [("finished", -1), ("made up", 1)])
def test_a_tally_that_nothing_writes_is_named(broker: DatabaseBackend, database: str, name: str, count: int) -> None:
    Tally.objects.using(database).create(alias="default", name=name, count=count)
    Tally.objects.using(database).create(alias="other", name="x", count=1)
    assert _audit()["differences"] == [f"the tally has {count} {name!r}, which nothing writes"]


@pytest.mark.usefixtures("gives_up_soon")
def test_without_its_broker_the_audit_can_not_say_that_all_is_well(
    stored_delayq: dict[str, Any], settings: Settings
) -> None:
    settings.DELAYQ = {"default": {**stored_delayq, "LOCATION": "unix:///nowhere/redis.sock"}}
    send_delay_message("k", 1, id="a", delay="1h")
    (difference,) = _audit()["differences"]
    assert difference.startswith("the alarms can't be looked at: Redis at unix:///nowhere/redis.sock is away")


def test_without_a_store_there_is_nothing_to_repair_by(redis_delayq: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="'default' has no store") as raised:
        call_command("delayq", "audit", "--repair")
    assert raised.value.returncode == 2


def test_people_read_what_was_mended_and_what_is_noted(broker: DatabaseBackend, redis_server: Server) -> None:
    _place(broker, "a", "b")
    _forget_alarms(redis_server)
    send_delay_message("k", 1, id="c", delay="10s")  # the broker is told of it right away
    cancel_delay_messages("c")
    out = io.StringIO()
    call_command("delayq", "audit", "--repair", stdout=out)
    assert out.getvalue().splitlines() == [
        "repaired: message 'a' is due before the cursor, and the broker has no alarm for it in time: it is put again",
        "repaired: message 'b' is due before the cursor, and the broker has no alarm for it in time: it is put again",
        "sent 3: pending 2, ready 0, running 0, failed 0, finished 0, cancelled 1, purged 0, dropped 0",
        "note: alarms of messages that are gone: 1 (harmless); each is dropped when it is due",
        "audit: ok",
    ]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_a_sequence_that_is_behind_is_named_and_moved_on_and_what_waits_can_end(
    broker: DatabaseBackend, database: str
) -> None:
    for id in ("a", "b", "c"):
        send_delay_message("k", 1, id=id)
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claim(broker)])
    assert _audit()["ok"]
    rows = FinishMessage.objects.using(database).order_by("pk")
    (first, a), (second, b), (third, _) = rows.values_list("pk", "message_id")
    broker.database.rows("SELECT setval('delayq_ready_id_seq', %s, false)", [first])  # as it was restored
    for id in ("d", "e"):
        send_delay_message("k", 1, id=id)
    assert _audit()["differences"] == [
        f"messages 'd' in the table ready and {a!r} in finish have the primary key {first}",
        f"messages 'e' in the table ready and {b!r} in finish have the primary key {second}",
        f"the sequence public.delayq_ready_id_seq is behind: it gives {third} next, and rows have up to {third}",
    ]
    seen = _audit("--repair")
    assert (seen["differences"], len(seen["repaired"])) == ([], 1)
    assert seen["repaired"][0].endswith("it is moved on, and 2 waiting message(s) got another primary key")
    send_delay_message("k", 1, id="f")
    while found := broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages:
        assert all(broker.queue.apply([settlement(one, SettleAction.FINISH) for one in found]))
    assert set(FinishMessage.objects.using(database).values_list("message_id", flat=True)) == set("abcdef")
    assert _audit()["ok"]


def _send_under_the_key_of_one_that_finished(broker: DatabaseBackend, database: str) -> int:
    """Have "b" wait under the primary key of "a", which has finished. Returns the key."""
    send_delay_message("k", 1, id="a")
    broker.queue.apply([settlement(one, SettleAction.FINISH) for one in claim(broker)])
    (first,) = FinishMessage.objects.using(database).values_list("pk", flat=True)
    broker.database.rows("SELECT setval('delayq_ready_id_seq', %s, false)", [first])
    send_delay_message("k", 1, id="b")
    return int(first)


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_what_was_held_while_the_sequence_was_moved_on_gets_another_primary_key_later(
    broker: DatabaseBackend, database: str
) -> None:
    first = _send_under_the_key_of_one_that_finished(broker, database)
    (held,) = claim(broker)
    both = f"messages 'b' in the table ready and 'a' in finish have the primary key {first}"
    assert _audit("--repair")["differences"] == [both]
    assert broker.queue.apply([settlement(held, SettleAction.RELEASE)]) == [True]
    seen = _audit("--repair")
    assert (seen["differences"], seen["repaired"]) == ([], ["1 waiting message(s) got another primary key"])
    (again,) = broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages
    assert broker.queue.apply([settlement(again, SettleAction.FINISH)]) == [True]
    assert _audit("--repair")["repaired"] == []


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_what_failed_under_the_primary_key_of_one_that_finished_can_be_rescued_and_end(
    broker: DatabaseBackend, database: str
) -> None:
    _send_under_the_key_of_one_that_finished(broker, database)
    broker.queue.apply([settlement(one, SettleAction.BURY) for one in claim(broker)])
    seen = _audit("--repair")
    assert (seen["differences"], seen["repaired"]) == ([], ["1 failed message(s) got another primary key"])
    broker.queue.rescue(["b"])
    (again,) = broker.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages
    assert broker.queue.apply([settlement(again, SettleAction.FINISH)]) == [True]
    assert _audit()["ok"]
