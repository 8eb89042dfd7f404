"""`id_scope="all"`: an id under which a message has ended is refused for as long as its row is kept."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel

from django_delayq import (
    DuplicateMessage,
    Message,
    Send,
    SendError,
    Unsupported,
    asend_delay_message,
    asend_delay_messages,
    cancel_delay_messages,
    delay_execute,
    get_delay_message,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.admin.message.edit import rescue_with
from django_delayq.brokers.base import (
    CancelRequest,
    SettleAction,
)
from django_delayq.core.message import OnConflict, Sent
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.operations import prune_finished
from tests.brokers.rig import settlement
from tests.store.support import alarms, claim
from tests.worker.rig import PATIENCE_S

T = TypeVar("T")

MOST_STATEMENTS = {"postgresql": 8, "sqlite": 6, "mysql": 8}
"""Of a batch, BEGIN and COMMIT included."""
ENDS: dict[str, Callable[[DatabaseBackend], object]] = {
    "finished": lambda broker: settle(broker, SettleAction.FINISH),
    "failed": lambda broker: settle(broker, SettleAction.BURY),
    "cancelled": lambda broker: cancel_delay_messages("a"),
}


def once(id: str = "a", **options: Any) -> Sent:
    return send_delay_message("k", 2, id=id, id_scope="all", **options)


def settle(broker: DatabaseBackend, action: SettleAction = SettleAction.FINISH) -> None:
    """End the messages that are due."""
    ends = [settlement(each, action, error="e") for each in claim(broker)]
    while ends:  # another transaction may hold a row
        answers = broker.queue.apply(ends)
        assert False not in answers
        ends = [end for end, answer in zip(ends, answers, strict=True) if answer is None]


def send_and_end(broker: DatabaseBackend, *ids: str) -> None:
    send_delay_messages(Send("k", 1, id=id) for id in ids)
    settle(broker)


def waiting(database: str) -> list[str]:
    return sorted(ReadyMessage.objects.using(database).values_list("message_id", flat=True))


# One after another


@pytest.mark.parametrize("how", ENDS)
def test_an_id_that_has_ended_is_refused(broker: DatabaseBackend, database: str, how: str) -> None:
    assert once().created
    sent = once()
    assert (sent.created, sent.ended) == (False, False)  # it waits
    ENDS[how](broker)
    sent = once(delay="1h")
    info = get_delay_message("a")
    assert info is not None
    assert (sent.created, sent.running, sent.ended, sent.due_at) == (False, False, True, info.due_at)
    assert waiting(database) == []
    assert send_delay_message("k", 3, id="a").created  # who does not ask for it is not refused


def test_raise_says_which_have_ended_and_when_and_which_wait(broker: DatabaseBackend, database: str) -> None:
    send_and_end(broker, "a")
    ended_at = FinishMessage.objects.using(database).get().ended_at
    with pytest.raises(DuplicateMessage, match=rf"^Ended already: 'a' \(at {ended_at:%Y-%m-%d %H:%M:%S} UTC\)\.$"):
        once(on_conflict="raise")
    send_delay_message("k", 1, id="b", delay="1h")
    sends = [Send("k", 2, id=id, id_scope="all", on_conflict="raise") for id in "abc"]
    with pytest.raises(SendError, match=r"^Waiting or running already: 'b'\. Ended already: 'a' \(at .* UTC\)\."):
        send_delay_messages(sends)
    assert waiting(database) == ["b", "c"]


@pytest.mark.parametrize("on_conflict", ["replace", "earliest", "latest"])
def test_what_has_ended_is_left_as_it_is_and_what_waits_is_changed(
    broker: DatabaseBackend, database: str, on_conflict: OnConflict
) -> None:
    send_and_end(broker, "a")
    send_delay_message("k", 1, id="b", delay="2h")
    hours = 3 if on_conflict == "latest" else 1
    for id, ended in (("a", True), ("b", False)):
        sent = once(id, delay=f"{hours}h", on_conflict=on_conflict)
        assert (sent.created, sent.ended) == (False, ended)
    row = ReadyMessage.objects.using(database).get()
    assert (row.message_id, round((row.due_at - row.sent_at).total_seconds() / 3600)) == ("b", hours)
    assert row.data == ("2" if on_conflict == "replace" else "1")
    assert FinishMessage.objects.using(database).get().data == "1"


def test_an_id_is_free_again_once_its_row_is_gone(broker: DatabaseBackend, database: str) -> None:
    send_and_end(broker, "a")
    assert prune_finished(broker.database, broker.database.now_ms() + 1) == 1
    assert once().created


def test_in_bulk_the_ids_that_have_ended_are_left_out(broker: DatabaseBackend, database: str) -> None:
    send_and_end(broker, "a", "b")
    ids = ["a", "b", "c", "c", "d", "a"]
    sent = send_delay_messages(Send("k", 2, id=id, id_scope="all") for id in ids)
    assert (sent.accepted, sent.created) == (6, 2)
    assert waiting(database) == ["c", "d"]
    sent = send_delay_messages([Send("k", 2, id="a", id_scope="all"), Send("k", 3, id="a"), Send("k", 4, id="b")])
    assert (sent.accepted, sent.created) == (3, 2)  # who does not ask for it is not refused
    assert waiting(database) == ["a", "b", "c", "d"]


def test_in_async_code_too(broker: DatabaseBackend, database: str) -> None:
    send_and_end(broker, "a")

    async def send_again() -> tuple[Sent, int]:
        sent = await asend_delay_message("k", 2, id="a", id_scope="all")
        many = await asend_delay_messages([Send("k", 2, id=id, id_scope="all") for id in "ab"])
        return sent, many.created

    sent, created = asyncio.run(send_again())
    assert (sent.created, sent.ended, created) == (False, True, 1)


def test_a_batch_takes_few_statements(broker: DatabaseBackend, database: str) -> None:
    send_and_end(broker, *(f"{n}" for n in range(50)))
    with CaptureQueriesContext(connections[database]) as captured:
        assert send_delay_messages(Send("k", 2, id=f"{n}", id_scope="all") for n in range(100)).created == 50
    assert len(captured) <= MOST_STATEMENTS[connections[database].vendor], captured.captured_queries


def test_a_send_that_is_refused_writes_nothing(broker: DatabaseBackend, database: str) -> None:
    send_and_end(broker, "a")
    with CaptureQueriesContext(connections[database]) as captured:
        assert once().ended
    assert not [each["sql"] for each in captured if re.search("INSERT|DELETE", each["sql"])]


def test_a_rollback_frees_the_id(broker: DatabaseBackend, database: str) -> None:
    with transaction.atomic(using=database):
        assert once().created
        assert not once().created
        cancel_delay_messages("a")
        assert once().ended
        transaction.set_rollback(True, using=database)
    assert once().created


# The handler's default


def handle(message: Message[int]) -> None: ...


def test_a_handler_has_it_for_all_its_sends_that_have_an_id(
    broker: DatabaseBackend, database: str, registry: None
) -> None:
    handler = delay_execute("k", id_scope="all", former_keys=["old"])(handle)
    send_and_end(broker, "a")
    assert handler.send(2, id="a").ended
    assert send_delay_message("old", 2, id="a").ended
    assert send_delay_messages([handler.prepare(2, id="a")]).created == 0
    assert handler.send(2, id="a", id_scope="waiting").created
    assert handler.send(2).created


def test_what_runs_an_id_again_is_refused_for_a_handler_that_has_it(
    broker: DatabaseBackend, database: str, registry: None
) -> None:
    handler = delay_execute("k", id_scope="all")(handle)
    again: dict[str, Any] = {"id": "a", "on_conflict": "replace", "while_running": "again"}
    with pytest.raises(ValueError, match=r'which id_scope="all" of its handler forbids: send id_scope="waiting"\.'):
        handler.send(2, **again)
    with pytest.raises(ValueError, match=r'which id_scope="all" forbids: leave one of them out\.'):
        handler.send(2, id_scope="all", **again)
    with pytest.raises(SendError, match="of its handler forbids"):
        send_delay_messages([handler.prepare(2, **again)])
    assert not ReadyMessage.objects.using(database).exists()
    assert handler.send(2, id_scope="waiting", **again).created


def test_an_operator_may_edit_a_failed_message_whose_id_has_ended_before(
    broker: DatabaseBackend, database: str, registry: None
) -> None:
    handler = delay_execute("k", id_scope="all")(handle)
    send_and_end(broker, "a")
    handler.send(2, id="a", id_scope="waiting")
    settle(broker, SettleAction.BURY)
    rescue_with(ErrorMessage.objects.using(database).get(), 3)
    assert ReadyMessage.objects.using(database).get().data == "3"


# Two at once


def in_another_thread(work: Callable[[], T]) -> Callable[[], T]:
    """Return the work, with its connections closed after it."""

    def run() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    return run


@contextmanager
def after_statement(database: str, pattern: str, act: Callable[[], object]) -> Iterator[list[str]]:
    """Let this thread act once, right after its first statement on the database that the pattern matches."""
    done: list[str] = []

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        result = run(sql, params, many, context)
        if not done and re.search(pattern, sql):
            done.append(sql)
            act()
        return result

    with connections[database].execute_wrapper(execute):
        yield done
    assert done, f"no statement matches {pattern}"


def wait_until_blocked(database: str, other: "Future[Any]") -> None:
    """Wait until the other thread waits for a lock of this thread's transaction, or is through."""
    asked = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mysql": "SELECT variable_value FROM information_schema.global_status"
        " WHERE variable_name = 'Innodb_row_lock_current_waits'",
    }.get(connections[database].vendor)
    if asked is None:  # SQLite tells nobody who waits
        return
    with ThreadPoolExecutor(1) as pool:  # a connection of its own, because this thread's is amid its transaction

        def is_blocked() -> bool:
            with connections[database].cursor() as cursor:
                cursor.execute(asked)
                return int(cursor.fetchone()[0]) > 0

        for _ in range(int(PATIENCE_S * 100)):
            if other.done() or pool.submit(in_another_thread(is_blocked)).result(PATIENCE_S):
                return
    raise AssertionError("the other never waited")


LOOK = r"delayq_finish"
INSERT = r"INSERT INTO .delayq_ready|INSERT INTO delayq_ready"


def test_what_ends_after_the_first_look_is_not_sent_again(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    with ThreadPoolExecutor(1) as pool:
        ends: list[Future[Sequence[bool | CancelRequest | None]]] = []

        def end() -> None:
            apply = in_another_thread(lambda: broker.queue.apply([settlement(claimed, SettleAction.FINISH)]))
            ends.append(pool.submit(apply))
            if connections[database].vendor != "sqlite":  # there it waits for this transaction
                ends[0].result(PATIENCE_S)

        with after_statement(database, LOOK, end):
            sent = once()
        assert ends[0].result(PATIENCE_S) == [True]
    assert not sent.created
    assert sent.ended == (connections[database].vendor != "sqlite")
    assert (waiting(database), alarms(broker)) == ([], 0)


@pytest.mark.parametrize("ids", [["a"], ["b", "a", "c"]], ids=["one", "many"])
def test_what_ends_while_the_insert_waits_for_it_is_not_sent_again(
    broker: DatabaseBackend, database: str, ids: list[str]
) -> None:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    sends = [Send("k", 2, id=id, id_scope="all") for id in ids]
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=database):
            assert broker.queue.apply([settlement(claimed, SettleAction.FINISH)]) == [True]
            sending = pool.submit(in_another_thread(lambda: send_delay_messages(sends)))
            wait_until_blocked(database, sending)
        assert sending.result(PATIENCE_S).created == len(ids) - 1
    assert waiting(database) == sorted({*ids} - {"a"})
    assert alarms(broker) == len(ids) - 1


@pytest.mark.parametrize(
    "database", ["postgres_database", "mariadb_database"], ids=["postgresql", "mariadb"], indirect=True
)
def test_in_a_transaction_too_that_has_begun_before(broker: DatabaseBackend, database: str) -> None:
    send_delay_message("k", 1, id="a")
    (claimed,) = claim(broker)
    with ThreadPoolExecutor(1) as pool, transaction.atomic(using=database):
        assert get_delay_message("b") is None
        end = in_another_thread(lambda: broker.queue.apply([settlement(claimed, SettleAction.FINISH)]))
        assert pool.submit(end).result(PATIENCE_S) == [True]
        assert once().ended
        assert once("b").created
    assert waiting(database) == ["b"]


def test_of_two_senders_one_sends(broker: DatabaseBackend, database: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[Sent]] = []

        def send_too() -> None:
            others.append(pool.submit(in_another_thread(once)))
            wait_until_blocked(database, others[0])

        with after_statement(database, INSERT, send_too):
            sent = once()
        other = others[0].result(PATIENCE_S)
    assert (sent.created, other.created, other.ended) == (True, False, False)
    assert waiting(database) == ["a"]


def test_a_cancel_between_the_insert_and_the_second_look_changes_nothing(
    broker: DatabaseBackend, database: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        cancels: list[Future[int]] = []

        def cancel() -> None:
            cancels.append(pool.submit(in_another_thread(lambda: cancel_delay_messages("a"))))
            wait_until_blocked(database, cancels[0])

        with after_statement(database, INSERT, cancel):
            sent = once(delay="1h")
        count = cancels[0].result(PATIENCE_S)
    assert (sent.created, len(waiting(database))) == (True, 1 - count)  # some databases let it wait for the row


def test_many_senders_and_a_worker_run_each_id_once(broker: DatabaseBackend, database: str) -> None:
    ids = [f"{n}" for n in range(20)]

    def send() -> None:
        for _ in range(5):
            send_delay_messages(Send("k", 1, id=id, id_scope="all") for id in ids)

    with ThreadPoolExecutor(3) as pool:
        sending = [pool.submit(in_another_thread(send)) for _ in range(3)]
        while not all(each.done() for each in sending):
            if waiting(database):
                settle(broker)
        for each in sending:
            each.result(PATIENCE_S)
    if waiting(database):
        settle(broker)
    assert sorted(FinishMessage.objects.using(database).values_list("message_id", flat=True)) == sorted(ids)


# Levels of isolation


def connect_with(database: str, options: dict[str, Any]) -> None:
    """Have the connections of this test made with these OPTIONS too."""
    connections[database].close()
    connections.settings[database].setdefault("OPTIONS", {}).update(options)
    del connections[database]


@pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "options",
    [
        {"isolation_level": IsolationLevel.REPEATABLE_READ},
        {"isolation_level": IsolationLevel.SERIALIZABLE},
        {"options": "-c default_transaction_isolation=serializable"},
    ],
    ids=["repeatable read", "serializable", "default"],
)
def test_postgresql_refuses_where_nobody_sees_what_ends_meanwhile(
    broker: DatabaseBackend, database: str, options: dict[str, Any]
) -> None:
    connect_with(database, options)
    with pytest.raises(Unsupported, match=r"READ COMMITTED: at (REPEATABLE READ|SERIALIZABLE), "):
        once()
    with pytest.raises(Unsupported), transaction.atomic(using=database):
        once()
    assert send_delay_message("k", 1, id="b", delay="1h").created
    assert waiting(database) == ["b"]


MARIADB = pytest.mark.parametrize("database", ["mariadb_database"], ids=["mariadb"], indirect=True)


@MARIADB
def test_mariadb_lets_others_end_beside_the_ids_that_a_transaction_has_looked_for(
    broker: DatabaseBackend, database: str
) -> None:
    send_and_end(broker, "b")
    row = FinishMessage.objects.using(database).get()

    def end_others() -> None:
        for row.id, row.message_id in enumerate(("bb", "cc"), 1_000):
            row.save(using=database, force_insert=True)

    with ThreadPoolExecutor(1) as pool, transaction.atomic(using=database):
        assert once("b").ended
        assert once("c").created
        pool.submit(in_another_thread(end_others)).result(PATIENCE_S)


@MARIADB
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_mariadb_sees_what_ended_after_the_transaction_began(
    broker: DatabaseBackend, database: str, level: str
) -> None:
    connect_with(database, {"isolation_level": level})
    with ThreadPoolExecutor(1) as pool, transaction.atomic(using=database):
        assert not Group.objects.using(database).exists()  # what it reads from here on is as of now
        pool.submit(in_another_thread(lambda: send_and_end(broker, "a"))).result(PATIENCE_S)
        assert once().ended
        assert once("b").created
    assert waiting(database) == ["b"]


@MARIADB
def test_mariadb_fails_where_it_refuses_to_read_what_is_newer(broker: DatabaseBackend, database: str) -> None:
    options = {"isolation_level": "repeatable read", "init_command": "SET innodb_snapshot_isolation = ON"}
    connect_with(database, options)
    with ThreadPoolExecutor(1) as pool, transaction.atomic(using=database):
        assert not Group.objects.using(database).exists()
        pool.submit(in_another_thread(lambda: send_and_end(broker, "a"))).result(PATIENCE_S)
        with pytest.raises(OperationalError, match="1020"):
            once()
    assert waiting(database) == []


@pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)
def test_in_sqlite_nobody_writes_between_the_look_and_the_insert(broker: DatabaseBackend, database: str) -> None:
    """Whoever has read there can't write once another has written, unless transactions are IMMEDIATE."""
    connect_with(database, {"transaction_mode": "DEFERRED", "timeout": 0.1})
    with ThreadPoolExecutor(1) as pool:

        def send_too() -> None:
            with pytest.raises(OperationalError, match="locked"):
                pool.submit(in_another_thread(lambda: once("b"))).result(PATIENCE_S)

        with after_statement(database, LOOK, send_too):
            assert once().created
    assert waiting(database) == ["a"]
