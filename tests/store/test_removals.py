"""A row leaves its table only for another one, or for the tally: triggers see every statement of every move."""

from collections.abc import Callable

import pytest
from django.db import connections

from django_delayq import cancel_delay_messages, send_delay_message
from django_delayq.brokers.base import Claimed, SettleAction
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.store.operations import prune_errors, prune_finished
from tests.brokers.rig import settlement
from tests.store.support import LEASE_MS, WANT, claim

FAR_MS = 4_000_000_000_000

TABLES = ("delayq_ready", "delayq_finish", "delayq_error")
WATCH = [
    "CREATE TABLE seen (txid bigint, pk bigint, change int)",
    """CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_TABLE_NAME = 'delayq_tally' THEN
            INSERT INTO seen VALUES (
                txid_current(), NULL, NEW.count - CASE WHEN TG_OP = 'UPDATE' THEN OLD.count ELSE 0 END);
        ELSIF TG_OP = 'DELETE' THEN INSERT INTO seen VALUES (txid_current(), OLD.id, -1);
        ELSE INSERT INTO seen VALUES (txid_current(), NEW.id, 1);
        END IF;
        RETURN NULL;
    END $$""",
    *(f"CREATE TRIGGER see AFTER INSERT OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION see()" for table in TABLES),
    "CREATE TRIGGER see AFTER INSERT OR UPDATE ON delayq_tally FOR EACH ROW EXECUTE FUNCTION see()",
]
# In each transaction: rows that were removed and put nowhere, against what the tally grew by.
UNACCOUNTED = """
    WITH rows AS (SELECT txid, pk, sum(change) AS left_over FROM seen WHERE pk IS NOT NULL GROUP BY txid, pk),
    gone AS (SELECT txid, -sum(left_over) AS number FROM rows WHERE left_over < 0 GROUP BY txid),
    told AS (SELECT txid, sum(change) AS number FROM seen WHERE pk IS NULL GROUP BY txid)
    SELECT coalesce(gone.number, 0), coalesce(told.number, 0) FROM gone FULL JOIN told USING (txid)
    WHERE coalesce(gone.number, 0) <> coalesce(told.number, 0)
"""

pytestmark = [
    pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True),
    pytest.mark.alters_tables,
]
Move = Callable[[DatabaseBackend], object]


@pytest.fixture
def watched(broker: DatabaseBackend, database: str) -> DatabaseBackend:
    """A store whose tables are watched from here on."""
    with connections[database].cursor() as cursor:
        for statement in WATCH:
            cursor.execute(statement)
    return broker


def _unaccounted(broker: DatabaseBackend) -> list[tuple[int, ...]]:
    return broker.database.rows(UNACCOUNTED)


def _removals(broker: DatabaseBackend) -> int:
    ((number,),) = broker.database.rows("SELECT count(*) FROM seen WHERE change = -1")
    return int(number)


def _held(broker: DatabaseBackend) -> Claimed:
    send_delay_message("k", 1, id="a")
    (held,) = claim(broker)
    return held


def _end(verb: SettleAction, broker: DatabaseBackend) -> None:
    assert broker.queue.apply([settlement(_held(broker), verb, error="no", failed=True)]) == [True]


def _cancel(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    assert cancel_delay_messages("a") == 1


def _die_three_times(broker: DatabaseBackend) -> None:
    for held in (_held, lambda broker: claim(broker)[0], _held_suspect):
        assert broker.queue.apply([settlement(held(broker), SettleAction.CRASH, error="died")]) == [True]


def _held_suspect(broker: DatabaseBackend) -> Claimed:
    return broker.queue.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w").messages[0]


def _lapse_at_most_once(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", at_most_once=True)
    claim(broker)
    ReadyMessage.objects.using(broker.database.using).update(lease_until=1)
    assert broker.queue.maintain(lease_ms=LEASE_MS).buried


def _rescue(broker: DatabaseBackend) -> None:
    _end(SettleAction.BURY, broker)
    assert broker.queue.rescue(["a"]) == [True]


def _purge(broker: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    assert broker.queue.purge(["a"]) == [True]


def _purge_failed(broker: DatabaseBackend) -> None:
    _end(SettleAction.BURY, broker)
    assert broker.queue.purge_failed(["a"]) == [True]


def _prune(broker: DatabaseBackend) -> None:
    _cancel(broker)
    _end(SettleAction.FINISH, broker)
    _end(SettleAction.BURY, broker)
    assert prune_finished(broker.database, FAR_MS) == 2
    assert prune_errors(broker.database, FAR_MS) == 1


def _finish(broker: DatabaseBackend) -> None:
    _end(SettleAction.FINISH, broker)


def _bury(broker: DatabaseBackend) -> None:
    _end(SettleAction.BURY, broker)


MOVES: list[Move] = [
    *(_finish, _bury, _cancel, _die_three_times, _lapse_at_most_once, _rescue, _purge, _purge_failed, _prune)
]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__.strip("_"))
def test_a_row_is_removed_only_by_what_writes_it_elsewhere_or_counts_it(watched: DatabaseBackend, move: Move) -> None:
    move(watched)
    assert _removals(watched)
    assert _unaccounted(watched) == []


def test_any_other_removal_would_be_seen(watched: DatabaseBackend) -> None:
    send_delay_message("k", 1, id="a", delay="1h")
    ReadyMessage.objects.using(watched.database.using).all().delete()
    assert _unaccounted(watched) == [(1, 0)]
