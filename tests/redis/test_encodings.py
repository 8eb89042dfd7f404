"""How Redis keeps what is leased: a small zset or hash is a list, which it scans for each member that it adds."""

import pytest

from django_delayq.brokers.redis.claim import MOST
from django_delayq.brokers.redis.shards import Keys
from tests.brokers.rig import Rig
from tests.servers import Server

KEYS = Keys("delayq")
BATCH = [f"m{number:02}" for number in range(MOST)]


@pytest.fixture(autouse=True)
def _leased(rig: Rig) -> None:
    rig.send(*BATCH)
    assert [message.id for message in rig.claim(MOST)] == BATCH


@pytest.mark.parametrize(("key", "encoding"), [(KEYS.running, b"skiplist"), (KEYS.state, b"hashtable")])
def test_a_batch_that_is_leased_is_kept_in_no_list(redis_server: Server, key: str, encoding: bytes) -> None:
    with redis_server.client() as client:
        assert client.object("encoding", key) == encoding


def test_a_batch_that_is_leased_leaves_no_other_place_behind(redis_server: Server) -> None:
    with redis_server.client() as client:
        assert [id.decode() for id in client.zrange(KEYS.running, 0, -1)] == BATCH
