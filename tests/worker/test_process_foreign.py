"""A worker on a Redis in which someone else has written under our keys."""

import pytest

from tests.servers import Server
from tests.worker.processes import Site


@pytest.mark.parametrize("key", ["error", "epoch"])
def test_a_key_of_another_type_is_named_and_stops_neither_messages_nor_the_heartbeat(
    site: Site, redis_server: Server, key: str
) -> None:
    with redis_server.client() as client:
        client.set(f"{{delayq:0}}:{key}", "someone else's")
        worker = site.worker()
        worker.until_says(f"WRONGTYPE of {{delayq:0}}:{key}; someone else writes under our prefix. Remove or rename it")
        for id in ("a", "b"):
            site.send(id)
            assert site.line.next().id == id
        assert len(site.broker.presence.workers()) == 1
        client.delete(f"{{delayq:0}}:{key}")
        worker.until_says("is back")
    assert worker.stop() == 0
    assert worker.text.count("WRONGTYPE") == 1
    assert "Traceback" not in worker.text
