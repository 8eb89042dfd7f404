"""Workers that ask for permits of the same values at once lock rows in one order, so that none waits for another's."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connections, transaction
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import PermitRequest
from django_delayq.core.errors import StoreUnavailable
from django_delayq.models import LimitRow, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.database.conftest import ALONE
from tests.databases import environment
from tests.races import waits_for_a_lock
from tests.servers.cluster import until
from tests.worker.processes import site_with
from tests.worker.rig import PATIENCE_S

A, B = (PermitRequest("k", value, 1, 1) for value in "ab")
LEASE_MS, SHORT_LEASE_MS, LEAST_LEASE_MS = 15_000, 3_000, 1_000


@contextmanager
def _another_does(work: Callable[[], object]) -> Iterator[None]:
    """Let another worker do `work` during the block, which it must end soon after."""

    def run() -> None:
        try:
            work()
        finally:
            connections.close_all()

    other = threading.Thread(target=run)
    other.start()
    yield
    other.join(PATIENCE_S)
    assert not other.is_alive()


@contextmanager
def _locked(using: str, value: str, **names: int) -> Iterator[None]:
    """Let another session keep the row of a value locked during the block."""
    locked, over = threading.Event(), threading.Event()

    def stand_still() -> None:
        with transaction.atomic(using=using):
            LimitRow.objects.using(using).select_for_update().get(value=value, **names)
            locked.set()
            assert over.wait(3 * PATIENCE_S)

    with _another_does(stand_still):
        assert locked.wait(PATIENCE_S)
        try:
            yield
        finally:
            over.set()


SERVERS = pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"])


@SERVERS
def test_rows_are_locked_in_the_order_of_their_values(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    backend, rows = new_backend(using), LimitRow.objects.using(using)
    for one in (B, A):  # so that their primary keys have the other order
        backend.limiter.acquire([one], lease_ms=LEASE_MS)
    looker = connections[using].copy()

    def is_a_locked() -> bool:
        with looker.cursor() as cursor:
            cursor.execute("SELECT id FROM delayq_limit WHERE value = 'a' FOR UPDATE SKIP LOCKED")
            return not cursor.fetchall()

    held, seen = threading.Event(), threading.Event()

    def hold_b() -> None:
        with transaction.atomic(using=using):
            rows.select_for_update().get(value="b")
            held.set()
            seen.wait(PATIENCE_S)

    with _another_does(hold_b):
        assert held.wait(PATIENCE_S)
        with _another_does(lambda: backend.limiter.renew([B, A], lease_ms=LEASE_MS)):
            until(is_a_locked)
            seen.set()
    looker.close()


@SERVERS
def test_a_row_that_another_session_keeps_locked_is_not_waited_for(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    limiter = new_backend(using).limiter
    limiter.acquire([A], lease_ms=LEASE_MS)
    said = r"Database '\w+': the limits of 'k' are locked by another session"
    with _locked(using, "a"):
        with pytest.raises(StoreUnavailable, match=said):
            limiter.acquire([replace(A, token=2)], lease_ms=LEASE_MS)
        with pytest.raises(StoreUnavailable, match=said):
            limiter.renew([A], lease_ms=LEASE_MS)
        with pytest.raises(StoreUnavailable, match=said):
            limiter.release([A])
        assert limiter.acquire([B], lease_ms=LEASE_MS) == [None]
        refused, granted = limiter.acquire([replace(A, token=2), replace(B, value="c")], lease_ms=LEASE_MS)
        assert granted is None
        assert refused
        assert re.search(said, refused.error)
        assert not refused.of_key
        with pytest.raises(StoreUnavailable, match=said):  # all need the row of the turn
            limiter.acquire([replace(A, interval_us=1)], lease_ms=LEASE_MS)
    assert limiter.acquire([replace(A, token=2)], lease_ms=LEASE_MS) != [None]


@SERVERS
def test_a_row_that_is_locked_keeps_no_other_from_being_renewed_and_released(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    limiter, rows = new_backend(using).limiter, LimitRow.objects.using(using)
    limiter.acquire([A, B], lease_ms=LEASE_MS)
    before = rows.get(value="b").slots
    with _locked(using, "a"):
        with pytest.raises(StoreUnavailable, match="are locked by another session"):
            limiter.renew([A, B], lease_ms=LEASE_MS)
        assert before != rows.get(value="b").slots != "{}"
        with pytest.raises(StoreUnavailable, match="are locked by another session"):
            limiter.release([A, B])
        assert rows.get(value="b").slots == "{}"
    assert rows.get(value="a").slots != "{}"


def test_a_row_under_a_locked_newer_one_is_left_alone(
    postgres_database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    limiter, rows = new_backend(postgres_database).limiter, LimitRow.objects.using(postgres_database)
    limiter.acquire([A], lease_ms=LEASE_MS)
    newest = rows.get()
    old = LimitRow(alias=newest.alias, key="k", value="a", slots="{}", line_ms=0, since_ms=0, turn_us=0, over_ms=0)
    old.save(using=postgres_database)
    with _locked(postgres_database, "a", version=newest.version), pytest.raises(StoreUnavailable):
        limiter.renew([A], lease_ms=LEASE_MS)
    assert rows.get(pk=old.pk).slots == "{}"


@pytest.fixture
def meanwhile(
    postgres_database: str, new_backend: Callable[[str], DatabaseBackend], monkeypatch: pytest.MonkeyPatch
) -> Callable[[DatabaseBackend, PermitRequest], None]:
    """Return a function that lets another worker ask for a permit before the next write of a worker."""

    def let_ask(backend: DatabaseBackend, request: PermitRequest) -> None:
        other, change = new_backend(postgres_database), backend.database.changed

        def after_the_other(sql: str, parameters: Sequence[object] = ()) -> int:
            monkeypatch.undo()
            assert other.limiter.acquire([request], lease_ms=LEASE_MS) == [None]
            return change(sql, parameters)

        monkeypatch.setattr(backend.database, "changed", after_the_other)

    return let_ask


def test_of_two_that_read_a_row_before_either_writes_it_one_gets_the_permit(
    postgres_database: str,
    new_backend: Callable[[str], DatabaseBackend],
    meanwhile: Callable[[DatabaseBackend, PermitRequest], None],
) -> None:
    backend = new_backend(postgres_database)
    backend.limiter.acquire([A], lease_ms=LEASE_MS)
    backend.limiter.release([A])
    meanwhile(backend, replace(A, token=2))
    (answer,) = backend.limiter.acquire([A], lease_ms=LEASE_MS)
    assert answer


def test_a_permit_whose_turn_another_has_taken_meanwhile_is_not_kept(
    postgres_database: str,
    new_backend: Callable[[str], DatabaseBackend],
    meanwhile: Callable[[DatabaseBackend, PermitRequest], None],
) -> None:
    """The permit and the turn are in two rows, of which the other worker changes one."""
    backend, rated = new_backend(postgres_database), replace(A, interval_us=3_600_000_000, rate_value="r")
    _insert_rows(backend, rated)
    meanwhile(backend, replace(rated, value="b"))
    (answer,) = backend.limiter.acquire([rated], lease_ms=LEASE_MS)
    assert answer
    assert answer.of_rate
    assert LimitRow.objects.using(postgres_database).get(value="a").slots == "{}"


def _insert_rows(backend: DatabaseBackend, rated: PermitRequest) -> None:
    """Insert the rows of a rate that nobody has started at, and of the values a and b."""
    for value in (rated.rate_value, "a", "b"):
        backend.limiter.acquire([replace(A, value=value)], lease_ms=LEASE_MS)
        backend.limiter.release([replace(A, value=value)])


@SERVERS
def test_whoever_asks_first_after_a_row_was_locked_for_long_leaves_permits_to_who_renews_them(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    holder, other = (new_backend(using).limiter for _ in "ab")
    holder.acquire([A], lease_ms=LEAST_LEASE_MS)
    with _locked(using, "a"), pytest.raises(StoreUnavailable):
        holder.renew([A], lease_ms=LEAST_LEASE_MS)  # which took as long as the lease
    assert other.acquire([replace(A, token=2)], lease_ms=LEAST_LEASE_MS) != [None]
    holder.renew([A], lease_ms=LEAST_LEASE_MS)
    assert other.acquire([replace(A, token=2)], lease_ms=LEAST_LEASE_MS) != [None]


@SERVERS
def test_a_row_that_another_session_keeps_inserting_is_not_waited_for(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    limiter = new_backend(using).limiter
    inserted, tried = threading.Event(), threading.Event()

    def stand_still() -> None:
        with transaction.atomic(using=using):
            limiter.acquire([A], lease_ms=LEASE_MS)
            inserted.set()
            assert tried.wait(PATIENCE_S)

    with _another_does(stand_still):
        assert inserted.wait(PATIENCE_S)
        with pytest.raises(StoreUnavailable, match="are locked by another session"):
            limiter.acquire([replace(A, token=2)], lease_ms=LEASE_MS)
        tried.set()


@SERVERS
def test_old_rows_are_removed_although_another_session_keeps_one_locked(
    request: pytest.FixtureRequest, database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    using = request.getfixturevalue(database)
    backend, rows = new_backend(using), LimitRow.objects.using(using)
    backend.limiter.acquire([A, B], lease_ms=LEASE_MS)
    rows.update(over_ms=1)
    with _locked(using, "a"):
        backend.queue.maintain(lease_ms=LEASE_MS)
        assert [row.value for row in rows.all()] == ["a"]


@SERVERS
def test_a_process_that_is_frozen_while_it_has_a_row_locked_loses_it(
    request: pytest.FixtureRequest,
    database: str,
    new_backend: Callable[[str], DatabaseBackend],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    using = request.getfixturevalue(database)
    frozen, other = (new_backend(using) for _ in "ab")
    other.limiter.acquire([A], lease_ms=LEASE_MS)
    with _locked(using, "a"), pytest.raises(StoreUnavailable):
        frozen.limiter.acquire([A], lease_ms=LEASE_MS)  # from now on it locks rows before it reads them
    soon = copy(frozen.database.dialect)
    soon.brief = soon.brief.replace("15000", "1000").replace("15", "1")
    monkeypatch.setattr(frozen.database, "dialect", soon)
    acquired: list[object] = []
    given_up = threading.Event()

    def acquire_elsewhere() -> None:
        while not (acquired or given_up.is_set()):
            with suppress(StoreUnavailable):
                acquired.append(other.limiter.acquire([A], lease_ms=LEASE_MS))
        connections.close_all()

    def stand_still() -> int:
        elsewhere = threading.Thread(target=acquire_elsewhere)
        elsewhere.start()
        elsewhere.join(PATIENCE_S)
        given_up.set()
        return real_now_ms()

    real_now_ms = frozen.database.now_ms
    monkeypatch.setattr(frozen.database, "now_ms", stand_still)
    with pytest.raises(StoreUnavailable):
        frozen.limiter.acquire([A], lease_ms=LEASE_MS)
    assert acquired == [[None]]


def test_who_waits_for_the_insert_of_a_row_holds_no_other(
    postgres_database: str, new_backend: Callable[[str], DatabaseBackend]
) -> None:
    backend = new_backend(postgres_database)
    limiter = backend.limiter
    limiter.acquire([B], lease_ms=LEASE_MS)
    with ExitStack() as ended, transaction.atomic(using=postgres_database):
        limiter.acquire([A], lease_ms=LEASE_MS)
        ended.enter_context(_another_does(lambda: limiter.acquire([A, B], lease_ms=LEASE_MS)))
        until(lambda: waits_for_a_lock(postgres_database))
        with connections[postgres_database].cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 200")
        limiter.release([B])


@SERVERS
def test_a_limit_that_is_locked_holds_up_neither_other_handlers_nor_leases(
    settings: Settings, request: pytest.FixtureRequest, database: str
) -> None:
    """Another session has the row locked while a message with that limit runs, and another one waits for it."""
    using = request.getfixturevalue(database)
    alias = {"BROKER": ALONE, "STORE": {}, "OPTIONS": {"unknown_keys": "allow", "lease": f"{SHORT_LEASE_MS}ms"}}
    settings.DELAYQ = {"default": alias | {"DATABASE": using}}
    env = environment(connections.settings[using]) | {"DELAYQ_TEST_LIMITS": "1"}
    row, waiting = (ReadyMessage.objects.using(using).filter(message_id=id) for id in "ab")
    with site_with(alias, get_backend(), env, Path("/tmp")) as site:
        worker = site.worker("--threads", "4")
        site.send("a", key="each", data="x")
        held = site.line.next()
        with _locked(using, "x"):
            site.send("b", key="each", data="x")
            worker.until_says("the limits of 'each' are locked by another session")
            site.send("c")
            assert site.line.next().id == "c"
            until(lambda: site.totals().get("finished") == 1)
            renewed = row.get().lease_until + timedelta(milliseconds=2 * SHORT_LEASE_MS)
            until(lambda: row.get().lease_until > renewed)
            site.send("d")
            assert site.line.next().id == "d"
            site.send("e", key="each", data="y")
            other = site.line.next()
            assert other.id == "e"
            other.release()
            assert site.line.next().what == "ran"
            asks_at = waiting.get().due_at
            until(lambda: waiting.get().due_at > asks_at)
        assert worker.text.count("are locked by another session") == 1
        held.release()
        ran = site.line.next()
        assert (ran.what, ran.id) == ("ran", "a")
        again = site.line.next()
        assert (again.id, again.attempt) == ("b", 1)
        again.release()
        assert worker.stop() == 0
        assert site.totals()["finished"] == 5
        assert "Traceback" not in worker.text
