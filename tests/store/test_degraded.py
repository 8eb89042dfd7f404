"""Degraded mode: what a worker needs of a broker that is away, the tables give."""

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_delayq import Send, reschedule_delay_messages, send_delay_message, send_delay_messages
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import BATCH, Alarm, Claimed, ClaimRequest, SettleAction, WorkerInfo
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.due_times import PAIRS as PAIRS_OF_A_LOOK
from django_delayq.store.polling import SETS, RowClaims, TableClaims, claim_ready, due
from django_delayq.store.timer import POLL_S, DatabaseTimer
from django_delayq.worker.worker import ask_report
from tests.brokers.rig import settlement
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, claim

HOUR_MS = 3_600_000


@pytest.fixture
def server(start_redis: Callable[..., Server]) -> Server:
    """A Redis of the test's own."""
    return start_redis()


@pytest.fixture
def redis_url(server: Server) -> str:
    """LOCATION of that one."""
    return server.url


def _send(database: str, *ids: str, key: str = "k", **options: Any) -> None:
    """Send what is due at once: due times are rounded up."""
    for id in ids:
        send_delay_message(key, 1, id=id, **options)
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - 1)


def _found(broker: DatabaseBackend, *wants: ClaimRequest) -> list[str]:
    alarms, _ = due(broker.database, wants)
    ids = dict(ReadyMessage.objects.using(broker.database.using).values_list("pk", "message_id"))
    return [ids[int(alarm.pk)] for alarm in alarms]


def test_the_feed_gives_what_is_due_of_each_wanted_set_and_no_more_than_wanted(
    broker: DatabaseBackend, database: str
) -> None:
    _send(database, "a", "b", "c")
    _send(database, "other", key="other")
    _send(database, "unwanted", key="unwanted")
    send_delay_message("k", 1, id="later", delay="1h")
    assert _found(
        broker, ClaimRequest("default", "k", 2), ClaimRequest("default", "other", 5), ClaimRequest("mail", "k", 5)
    ) == [
        *("a", "b"),
        "other",
    ]
    assert _found(broker, ClaimRequest("default", "k", 0)) == _found(broker) == []


def test_of_very_many_sets_it_asks_for_no_more_than_it_gives_and_tells_which_it_has_not_asked_for(
    broker: DatabaseBackend, database: str
) -> None:
    send_delay_messages(Send(f"k{n}", 1, id=f"{n:04}") for n in range(2 * BATCH))
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - 1)
    wants = [ClaimRequest("default", f"k{n}", 2) for n in range(2 * BATCH)]
    with CaptureQueriesContext(connections[database]) as asked:
        alarms, full = due(broker.database, wants)
    assert [alarm.key for alarm in alarms] == [want.key for want in wants[:BATCH]]
    assert full == {(want.queue, want.key) for want in wants[BATCH:]}
    assert len(asked) <= 1 + BATCH / SETS  # which sets have rows, and the pages in which there are enough


def test_the_feed_leaves_out_what_is_leased_and_what_must_run_alone(broker: DatabaseBackend, database: str) -> None:
    _send(database, "leased", "lapsed", "suspect")
    rows = ReadyMessage.objects.using(database)
    for id in ("leased", "lapsed"):
        rows.filter(message_id=id).update(token=1, lease_until=F("due_at") + (HOUR_MS if id == "leased" else 0))
    rows.filter(message_id="suspect").update(crashes=2)
    assert _found(broker, *WANT) == ["lapsed"]


def row_claims(broker: DatabaseBackend) -> RowClaims:
    """Claims from the tables alone."""
    return RowClaims(broker.database, DatabaseTimer(broker.database), TableClaims(broker.database))


class Clock:
    """The clock of the timer that reads the rows, in ms, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    def go_on(self) -> None:
        """Let so much time pass that the rows are read again."""
        self.now_ms += int(POLL_S * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("django_delayq.store.timer._now_ms", clock)
    return clock


def test_leases_that_ran_out_and_may_not_be_reclaimed_yet_are_not_read_again_and_again(
    broker: DatabaseBackend, database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("ROWS", "LEAST_ROWS"):
        monkeypatch.setattr(f"django_delayq.store.timer.{bound}", 2)
    _send(database, "a", "b", "c")
    ReadyMessage.objects.using(database).update(token=1, lease_until=1)
    timer = DatabaseTimer(broker.database)
    for _ in range(3):
        timer.take_due(WANT, lease_ms=LEASE_MS, worker="w")
        clock.go_on()
    timer.take_due(WANT, lease_ms=LEASE_MS, worker="w")
    with CaptureQueriesContext(connections[database]) as asked:
        timer.take_due(WANT, lease_ms=LEASE_MS, worker="w")
    assert len(asked) == 0


def test_of_a_pair_with_ready_rows_and_ended_leases_no_more_is_claimed_than_was_asked_for(
    broker: DatabaseBackend, database: str
) -> None:
    _send(database, "a", "b", "c", "d", "e")
    ReadyMessage.objects.using(database).filter(message_id__in=["c", "d", "e"]).update(token=1, lease_until=1)
    claims, _ = TableClaims(broker.database).claim([ClaimRequest("default", "k", 3)], LEASE_MS, "w")
    assert len(claims.messages) == 3


def test_the_tables_are_asked_at_once_after_a_full_batch_and_else_after_a_quarter_of_a_second(
    broker: DatabaseBackend, database: str, clock: Clock
) -> None:
    feed = row_claims(broker)
    one = [ClaimRequest("default", "k", 1)]
    _send(database, "a", "b")
    assert [each.id for each in feed.claim(one, LEASE_MS, "w").messages] == ["a"]
    assert [each.id for each in feed.claim(WANT, LEASE_MS, "w").messages] == ["b"]
    _send(database, "c")
    assert feed.claim(one, LEASE_MS, "w").messages == []
    clock.go_on()
    assert [each.id for each in feed.claim(one, LEASE_MS, "w").messages] == ["c"]


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_keys_without_work_keep_none_from_the_tables(broker: DatabaseBackend, database: str, clock: Clock) -> None:
    feed = row_claims(broker)
    keys = [f"k{n}" for n in range(12)]
    for key in keys:
        _send(database, *(f"{key}-{n}" for n in range(10)), key=key)
    found: list[str] = []
    for claimed in range(11):  # of each what four slots take, while some slot is free for keys that have nothing
        feed.claim([ClaimRequest("default", f"idle{claimed}", 4)], LEASE_MS, "w")
        for key in keys:
            wants = [ClaimRequest("default", key, 1), ClaimRequest("default", "idle", 4)]
            found += [each.id for each in feed.claim(wants, LEASE_MS, "w").messages]
    assert len(found) == len(set(found)) == 120


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_a_sleep_ends_at_once_where_there_may_be_more_of_what_was_wanted_last(
    broker: DatabaseBackend, database: str
) -> None:
    feed = row_claims(broker)
    full, empty = ClaimRequest("default", "full", 1), ClaimRequest("default", "empty", 1)
    _send(database, "a", key="full")
    feed.claim([full], LEASE_MS, "w")
    assert feed.wait(0), "there may be more"
    feed.claim([empty], LEASE_MS, "w")
    assert not feed.wait(0), "nothing of the other was wanted"
    feed.claim([full, empty], LEASE_MS, "w")
    assert feed.wait(0), "there was no more, but the timer must be asked for what comes"
    feed.claim([full, empty], LEASE_MS, "w")
    assert not feed.wait(0)


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_of_very_many_wanted_sets_only_those_are_asked_that_have_rows(broker: DatabaseBackend, database: str) -> None:
    _send(database, "a")
    wants = [ClaimRequest(f"q{n}", "k", 1) for n in range(2 * BATCH)]
    with CaptureQueriesContext(connections[database]) as asked:
        alarms, _ = due(broker.database, [*wants, *WANT])
    assert [alarm.queue for alarm in alarms] == ["default"]
    assert len(asked) == 2


def test_of_very_many_pairs_with_rows_a_look_tells_which_and_leaves_out_the_others_for_a_moment(
    broker: DatabaseBackend, database: str, clock: Clock
) -> None:
    feed = row_claims(broker)
    with_rows = [("default", f"k{n}") for n in range(BATCH + 1)]
    pairs = [*with_rows, *(("default", f"empty{n}") for n in range(BATCH + 1))]
    send_delay_messages(Send(key, 1) for _, key in with_rows)
    with CaptureQueriesContext(connections[database]) as asked:
        assert feed.due_pairs(pairs) == set(with_rows)
    assert len(asked) <= 2 + len(with_rows) / PAIRS_OF_A_LOOK  # which pairs have rows, and the pages of these
    _send(database, "a", key="empty0")
    with CaptureQueriesContext(connections[database]) as asked:
        assert feed.due_pairs(pairs) == set(with_rows)
    assert len(asked) == 0
    clock.go_on()
    assert feed.due_pairs(pairs) == {*with_rows, ("default", "empty0")}


@pytest.mark.usefixtures("gives_up_soon")
def test_what_is_given_back_is_claimed_again_without_a_second_between(
    broker: DatabaseBackend, server: Server, database: str, clock: Clock
) -> None:
    _send(database, "a", "b")
    server.kill()
    with pytest.raises(BrokerUnavailable):
        broker.queue.timer.take_due(WANT, lease_ms=LEASE_MS, worker="w")
    broker.degraded.on = True
    held, _ = broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages
    assert broker.queue.apply([settlement(held, SettleAction.RELEASE)]) == [True]
    assert [one.id for one in broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages] == ["a"]


def test_a_lease_that_is_given_back_amid_a_claim_disturbs_it_not(
    broker: DatabaseBackend, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_later = ClaimRequest("default", "other", 1)
    _send(database, "a")
    feed = row_claims(broker)
    assert feed.claim([asked_later], LEASE_MS, "w").messages == []

    def claim_while_another_thread_gives_back(*arguments: Any) -> Any:
        feed.note([Alarm(asked_later.queue, asked_later.key, "1")])
        return claim_ready(*arguments)

    monkeypatch.setattr("django_delayq.store.polling.claim_ready", claim_while_another_thread_gives_back)
    found = feed.claim([ClaimRequest("default", "k", 1), asked_later], LEASE_MS, "w")
    assert [one.id for one in found.messages] == ["a"]
    assert asked_later.pair in feed.due_pairs([asked_later.pair]), "what was given back is asked for next"


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
def test_the_feed_looks_past_rows_that_another_transaction_holds(
    broker: DatabaseBackend, database: str, postgres_database: str
) -> None:
    _send(database, "held", "free")
    with transaction.atomic(using=database):
        reschedule_delay_messages("held", delay="1h")
        found: list[str] = []
        other = _in_thread(lambda: found.extend(_found(broker, ClaimRequest("default", "k", 1))))
        other()
    assert found == ["free"]


def _in_thread(work: Callable[[], object]) -> Callable[[], None]:
    import threading

    from django.db import connections

    def run() -> None:
        work()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread.join


def test_at_most_once_work_whose_lease_ran_out_is_buried_without_the_broker(
    broker: DatabaseBackend, database: str, server: Server
) -> None:
    _send(database, "a", at_most_once=True)
    claim(broker)
    ReadyMessage.objects.using(database).update(lease_until=1)
    server.kill()
    broker.degraded.on = True
    assert broker.queue.maintain(lease_ms=LEASE_MS).buried
    assert ErrorMessage.objects.using(database).count() == 1


@pytest.mark.usefixtures("gives_up_soon")
@pytest.mark.parametrize("verb", [SettleAction.FINISH, SettleAction.RETRY, SettleAction.RELEASE, SettleAction.BURY])
def test_a_lease_is_renewed_and_ended_while_the_broker_is_away(
    broker: DatabaseBackend, server: Server, verb: SettleAction, database: str
) -> None:
    send_delay_message("k", 1, id="a")
    (held,) = claim(broker)
    server.kill()
    assert broker.queue.renew([held], LEASE_MS) == [True]
    assert broker.queue.apply([settlement(held, verb)]) == [True]
    assert broker.queue.apply([settlement(held, verb)]) == [False]


@pytest.mark.usefixtures("gives_up_soon")
def test_a_short_absence_is_no_degraded_mode_and_a_long_one_is(broker: DatabaseBackend, server: Server) -> None:
    server.kill()
    with pytest.raises(BrokerUnavailable):
        broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    broker.degraded.begin_if_due()
    assert broker.degraded.away
    assert not broker.degraded.on
    server.start()
    broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    assert not broker.degraded.away


@pytest.fixture
def soon_degraded(stored_delayq: dict[str, Any], settings: Settings) -> None:
    """Workers that go on from the tables as soon as they may."""
    settings.DELAYQ = {"default": {**stored_delayq, "STORE": {"DEGRADED_AFTER": 0}}}


def _begin(broker: DatabaseBackend) -> bool:
    """Keep up and claim, as a worker does. Whether it goes on from the tables then."""
    broker.queue.maintain(lease_ms=LEASE_MS)
    broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    broker.degraded.begin_if_due()
    return broker.degraded.on


@pytest.mark.usefixtures("soon_degraded")
def test_a_redis_without_memory_is_away_until_it_has_some(
    broker: DatabaseBackend, server: Server, database: str
) -> None:
    assert not _begin(broker)
    with server.memory_full():
        _send(database, "a")
        assert _begin(broker)
        assert [each.id for each in broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages] == ["a"]
        with pytest.raises(BrokerUnavailable, match="has no memory left"):
            broker.queue.ask_timer(lease_ms=LEASE_MS)
    broker.queue.ask_timer(lease_ms=LEASE_MS)
    broker.queue.timer.schedule([Alarm("default", "k", "1")])


@pytest.mark.usefixtures("soon_degraded")
def test_a_redis_without_memory_still_tells_of_what_it_has(
    broker: DatabaseBackend, server: Server, clock: Clock
) -> None:
    with server.memory_full():
        assert _begin(broker)
        assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []  # the tables are not asked again
    send_delay_message("k", 1, id="a")
    with server.memory_full():
        held = _claim_soon(broker)
        assert [each.id for each in held] == ["a"]
        assert broker.queue.apply([settlement(held[0], SettleAction.FINISH)]) == [True]
        assert broker.presence.heartbeat(WorkerInfo("w", ["default"], ["k"], 0, 0)).pauses == []
        assert [worker.name for worker in broker.presence.workers()] == ["w"]
    assert broker.queue.timer.maintain(lease_ms=LEASE_MS).next_lease_end_ms is None, "the alarm is dropped"


def _claim_soon(broker: DatabaseBackend) -> list[Claimed]:
    """Return what is claimed first, in a few tries."""
    for _ in range(20):
        if held := broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages:
            return held
        broker.queue.wait(0.1)
    return []


@pytest.mark.usefixtures("gives_up_soon", "soon_degraded")
@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_who_went_on_from_the_tables_asks_the_broker_before_it_sleeps(broker: DatabaseBackend, server: Server) -> None:
    server.kill()
    with pytest.raises(BrokerUnavailable):
        broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    broker.degraded.begin_if_due()
    broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    server.start()
    broker.queue.ask_timer(lease_ms=LEASE_MS)
    broker.degraded.end()
    send_delay_message("k", 1, id="a")
    assert broker.queue.wait(0)


PAIRS = [("default", "k"), ("other", "k")]


@pytest.mark.usefixtures("gives_up_soon")
@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_while_redis_is_away_any_queue_may_have_something_due_and_a_look_says_not_that_it_is_back(
    broker: DatabaseBackend, server: Server
) -> None:
    assert not broker.queue.due_pairs(PAIRS)
    broker.queue.backlog = frozenset(PAIRS[1:])  # a sweep has found that its alarms are gone
    assert set(broker.queue.due_pairs(PAIRS)) == {PAIRS[1]}
    server.kill()
    assert broker.queue.due_pairs(PAIRS) == PAIRS
    with pytest.raises(BrokerUnavailable):
        broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    server.start()
    assert broker.queue.due_pairs(PAIRS) == PAIRS
    assert broker.degraded.away  # until a claim works: one that takes no writes can be read


@pytest.mark.usefixtures("gives_up_soon", "soon_degraded")
@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_who_goes_on_from_the_tables_asks_no_pair_again_that_had_nothing_a_moment_ago(
    broker: DatabaseBackend, server: Server, database: str, clock: Clock
) -> None:
    server.kill()
    with pytest.raises(BrokerUnavailable):
        broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    broker.degraded.begin_if_due()
    broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w")
    with CaptureQueriesContext(connections[database]) as asked:
        assert not broker.queue.due_pairs(PAIRS)
        assert not broker.queue.due_pairs(PAIRS)
    assert len(asked) == 1, "of the pair of which nothing was wanted"


@pytest.mark.usefixtures("gives_up_soon")
def test_status_shows_the_figures_and_that_the_broker_is_away(
    stored_delayq: dict[str, Any], settings: Settings, database: str
) -> None:
    settings.DELAYQ = {"default": {**stored_delayq, "LOCATION": "unix:///nowhere/redis.sock"}}
    send_delay_message("k", 1, id="a", delay="1h")
    out = io.StringIO()
    call_command("delayq", "status", stdout=out)
    assert "pending 1, ready 0" in out.getvalue()
    assert "problem: Redis at unix:///nowhere/redis.sock is away" in out.getvalue()
    assert "durability: the messages are in the database: no crash of a broker loses one" in out.getvalue()
    assert "workers: not known while the broker is away" in out.getvalue()
    assert "parked" not in out.getvalue().replace("parked keys: 0", "")


def test_what_is_due_of_very_many_pairs_is_claimed_in_few_statements(broker: DatabaseBackend, database: str) -> None:
    send_delay_messages(Send(f"k{n}", 1, id=f"{n}") for n in range(BATCH))
    ReadyMessage.objects.using(database).update(due_at=F("due_at") - 1)
    feed = row_claims(broker)
    wants = [ClaimRequest("default", f"k{n}", 1) for n in range(BATCH)]
    with CaptureQueriesContext(connections[database]) as asked:
        assert len(feed.claim(wants, LEASE_MS, "w").messages) == BATCH
    reads = BATCH / SETS + BATCH / PAIRS_OF_A_LOOK
    assert len(asked) <= reads + 10  # which pairs have rows, twice, and one claim


@pytest.mark.usefixtures("gives_up_soon")
@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_a_worker_that_starts_without_redis_does_not_say_that_it_is_back(
    stored_delayq: dict[str, Any], settings: Settings, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DELAYQ = {"default": {**stored_delayq, "STORE": {"DEGRADED_AFTER": "150ms"}}}
    server.kill()
    with caplog.at_level(logging.INFO, "django_delayq"):
        assert ask_report(get_backend()).is_away
    assert [record.getMessage().split()[-1] for record in caplog.records] == ["works.", "later."], caplog.text
