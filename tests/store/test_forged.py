"""Who can write to Redis can't have a handler run: with a store a worker runs rows, and no message that lies there."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from django_delayq.core.errors import PartlyUnavailable
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.brokers.rig import ids
from tests.servers import Server
from tests.store.support import LEASE_MS, WANT, claim, clock_of, site_on

TAG = "{delayq:0}:"
LONG_AGO_MS = 1
MANY = 250
"""More than two claims take."""

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite_database"], ids=["sqlite"], indirect=True)


def forge(client: redis.Redis, *ids: str, key: str = "k", place: str = "wait", crashes: int = 0) -> None:
    """Write messages under our keys as we would, due long ago."""
    record = f'1\x1fdefault\x1f{key}\x1f\x1f{LONG_AGO_MS}\x1f{LONG_AGO_MS}\x1f\x1f\x1e""'
    state = f"77\x1f0\x1f{crashes}\x1f{LONG_AGO_MS}\x1fforger\x1f"
    where = f"wait:default:{key}" if place == "wait" else place
    for id in ids:
        client.hset(f"{TAG}msg", id, record)
        if place != "wait":
            client.hset(f"{TAG}state", id, state)
    client.zadd(TAG + where, dict.fromkeys(ids, LONG_AGO_MS))
    client.zadd(f"{TAG}keys", {f"default:{key}": LONG_AGO_MS})


def forge_all(client: redis.Redis) -> None:
    """Forge messages that wait, a job of the admin, and a pause of everything."""
    forge(client, *(f"forged-{n}" for n in range(MANY)), key="run")
    forge(client, "forged-job", key="delayq.move")
    client.hset("{delayq:meta}", mapping={f"pause:{what}": "1\x1f\x1fforged" for what in ("default:", ":run")})


PLACES: dict[str, Callable[[redis.Redis], None]] = {
    "waiting, with a job and a pause": forge_all,
    "running, its lease over": lambda client: forge(client, "forged", key="run", place="running"),
    "a suspect": lambda client: forge(client, "forged", key="run", place="suspect", crashes=2),
}


@ON_SQLITE
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "arguments",
    [(), ("--drain",), ("--processes", "1"), ("--drain", "--processes", "1")],
    ids=lambda arguments: " ".join(arguments) or "threads",
)
def test_no_worker_runs_a_message_that_was_written_to_redis(
    stored_delayq: dict[str, Any],
    database_env: dict[str, str],
    redis_server: Server,
    arguments: tuple[str, ...],
    place: str,
) -> None:
    with redis_server.client() as client, site_on(stored_delayq, database_env, redis_server) as site:
        PLACES[place](client)
        there = client.hlen(f"{TAG}msg")
        site.send("first")
        worker = site.worker(*arguments)
        assert site.line.next().id == "first"
        if "--drain" in arguments:
            assert worker.wait() == 0
            assert "Drained: 1 finished" in worker.text
        else:
            site.send("second")
            assert site.line.next().id == "second"
            assert worker.stop() == 0
        assert site.line.none_waits()
        assert client.hlen(f"{TAG}msg") == there


def test_messages_ahead_of_an_alarm_keep_it_from_nobody(
    broker: DatabaseBackend, database: str, redis_server: Server
) -> None:
    with redis_server.client() as client:
        forge(client, *(f"forged-{n}" for n in range(MANY)))
        send_delay_message("k", 1, id="ours")
        assert ids(claim(broker)) == ["ours"]
        assert not [member for member in client.zrange(f"{TAG}running", 0, -1) if b"forged" in member]
    assert ReadyMessage.objects.using(database).get().worker == "w"


@ON_SQLITE
def test_no_degraded_worker_runs_one_either(
    stored_delayq: dict[str, Any], broker: DatabaseBackend, start_redis: Callable[..., Server], settings: Settings
) -> None:
    server = start_redis()
    stored_delayq |= {"LOCATION": server.url, "STORE": {"DEGRADED_AFTER": 0}}
    settings.DELAYQ = {"default": stored_delayq}
    with server.client() as client, closing(_stored()) as degraded:
        forge(client, "forged", "forged-2")
        forge(client, "suspect", place="suspect", crashes=2)
        send_delay_message("k", 1, id="ours")
        with server.memory_full():
            degraded.queue.maintain(lease_ms=LEASE_MS)
            degraded.degraded.begin_if_due()
            assert degraded.degraded.on
            assert degraded.queue.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w").messages == []
            found: list[str] = []
            while not found:
                found += ids(degraded.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages)
                found += ids(degraded.queue.claim_all(WANT, lease_ms=LEASE_MS, worker="w").messages)
            assert found == ["ours"]
            assert ids(degraded.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages) == []


def _stored() -> DatabaseBackend:
    from django_delayq.brokers import get_backend

    found = get_backend()
    assert isinstance(found, DatabaseBackend)
    return found


def test_a_key_of_another_type_counts_as_a_part_that_is_away_and_keeps_no_row_from_its_upkeep(
    broker: DatabaseBackend, database: str, redis_server: Server
) -> None:
    send_delay_message("k", 1, id="lapsed")
    claim(broker)
    ReadyMessage.objects.using(database).update(at_most_once=True, lease_until=LONG_AGO_MS)
    with redis_server.client() as client:
        client.set(f"{TAG}error", "someone else's")
        assert [info.id for info in broker.queue.maintain(lease_ms=LEASE_MS).buried] == ["lapsed"]
        assert broker.degraded.away
        with pytest.raises(PartlyUnavailable, match="someone else writes under our prefix"):
            broker.queue.ask_timer(lease_ms=LEASE_MS)
        client.delete(f"{TAG}error")
        broker.queue.maintain(lease_ms=LEASE_MS)
    assert not broker.degraded.away


@ON_SQLITE
def test_what_was_sent_without_a_store_is_told_of_and_runs_with_the_old_settings(
    stored_delayq: dict[str, Any], broker: DatabaseBackend, redis_server: Server, settings: Settings
) -> None:
    assert broker.report().warnings == []
    settings.DELAYQ = {"default": stored_delayq | {"STORE": None}}
    send_delay_message("k", 1, id="before")
    with closing(RedisBroker(get_alias())) as old, redis_server.client() as client:
        while not clock_of(broker).queue.counts().waiting[0].ready:
            pass
        assert broker.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages == []
        (warning,) = broker.report().warnings
        assert warning.startswith("1 message(s) lie in Redis from before the store, and no worker runs them: ")
        client.zadd(f"{TAG}wait:default:k", {"before": LONG_AGO_MS})  # a minute later
        (claimed,) = old.queue.claim(WANT, lease_ms=LEASE_MS, worker="w").messages
        assert (claimed.id, claimed.failures, claimed.crashes) == ("before", 0, 0)
