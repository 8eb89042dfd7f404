"""What is buried is rescued, purged or pruned by one of those who try at once, and counted once."""

import pytest
from django.db.models import F

from django_delayq import send_delay_message
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, ReadyMessage, Tally
from django_delayq.store import DatabaseBackend
from django_delayq.store.operations import prune_errors
from tests.brokers.rig import settlement
from tests.races import while_another_did
from tests.store.support import claim

pytestmark = pytest.mark.parametrize("database", ["postgres_database"], ids=["postgresql"], indirect=True)


@pytest.fixture
def buried(broker: DatabaseBackend, database: str) -> DatabaseBackend:
    """The broker, with the message "a" in error."""
    send_delay_message("k", 1, id="a")
    assert broker.queue.apply([settlement(one, SettleAction.BURY, error="no") for one in claim(broker)]) == [True]
    ErrorMessage.objects.using(database).update(ended_at=F("ended_at") - 1)
    return broker


def _places(database: str) -> tuple[int, int, dict[str, int]]:
    tally = Tally.objects.using(database).values_list("name", "count")
    return ReadyMessage.objects.using(database).count(), ErrorMessage.objects.using(database).count(), dict(tally)


def test_what_is_rescued_meanwhile_is_not_purged(buried: DatabaseBackend, database: str) -> None:
    assert while_another_did(
        database, lambda: buried.queue.rescue(["a"]), lambda: buried.queue.purge_failed(["a"])
    ) == [False]
    assert _places(database) == (1, 0, {})


def test_what_is_purged_meanwhile_is_not_rescued(buried: DatabaseBackend, database: str) -> None:
    assert while_another_did(
        database, lambda: buried.queue.purge_failed(["a"]), lambda: buried.queue.rescue(["a"])
    ) == [False]
    assert _places(database) == (0, 0, {"purged": 1})


def test_what_is_purged_meanwhile_is_counted_once(buried: DatabaseBackend, database: str) -> None:
    purge = buried.queue.purge_failed
    assert while_another_did(database, lambda: purge(["a"]), lambda: purge(["a"])) == [False]
    assert _places(database) == (0, 0, {"purged": 1})


def test_what_is_pruned_meanwhile_is_not_rescued_and_the_other_way_round(
    buried: DatabaseBackend, database: str
) -> None:
    now_ms = buried.database.now_ms()

    def prune() -> int:
        return prune_errors(buried.database, now_ms)

    def rescue() -> list[bool]:
        return buried.queue.rescue(["a"])

    assert while_another_did(database, rescue, prune) == 0
    assert _places(database) == (1, 0, {})
    assert buried.queue.apply([settlement(one, SettleAction.BURY, error="no") for one in claim(buried)]) == [True]
    now_ms = buried.database.now_ms() + 1
    assert while_another_did(database, prune, rescue) == [False]
    assert _places(database) == (0, 0, {"dropped": 1})
