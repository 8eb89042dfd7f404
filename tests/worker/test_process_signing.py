"""Without a store, but with OPTIONS["sign"], workers run nothing that someone else has written to Redis."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import get_alias
from tests.servers import Server
from tests.store.test_forged import forge
from tests.worker.processes import Site, site_with


@pytest.fixture
def site(redis_delayq: dict[str, Any], process_env: dict[str, str], redis_server: Server) -> Iterator[Site]:
    redis_delayq["OPTIONS"] = {"lease": "2s", "sign": True}
    with site_with(redis_delayq, RedisBroker(get_alias()), process_env, redis_server.directory) as site:
        yield site


@pytest.mark.parametrize(
    "arguments", [(), ("--drain",), ("--processes", "1")], ids=lambda arguments: " ".join(arguments) or "threads"
)
def test_no_worker_runs_a_message_that_is_not_signed(
    site: Site, redis_server: Server, arguments: tuple[str, ...]
) -> None:
    with redis_server.client() as client:
        forge(client, "waits", key="run")
        forge(client, "lapsed", key="run", place="running")
        forge(client, "suspect", key="run", place="suspect", crashes=2)
    site.send("ours")
    worker = site.worker(*arguments)
    assert site.line.next().id == "ours"
    for id in ("waits", "lapsed", "suspect"):
        worker.until_says(f"Message '{id}' () failed for good: its signature is missing or wrong")
    assert (worker.wait() if "--drain" in arguments else worker.stop()) == 0
    assert site.line.none_waits()
    assert {info.id for info in site.broker.queue.failed(9)} == {"waits", "lapsed", "suspect"}
