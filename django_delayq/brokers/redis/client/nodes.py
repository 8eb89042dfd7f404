"""Find the node of a cluster that has a key.

redis-py's `NodesManager` knows it. It is asked in a thread, so that the time of the caller is kept.
"""

import threading
from concurrent.futures import Future
from typing import Any

from redis.cluster import ClusterNode, NodesManager, get_node_name
from redis.connection import SSLConnection
from redis.crc import key_slot
from redis.exceptions import MovedError, RedisClusterException, ResponseError

from django_delayq.brokers.redis.client.errors import TransientError, as_ours
from django_delayq.brokers.redis.client.location import Address, Location

ASK_S = 0.5
"""How many seconds one node may take to tell of the others before the next one is asked."""


class Nodes:
    """This process's knowledge of a cluster: at first only where some of its nodes should be."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._manager: NodesManager | None = None
        self._lock = threading.Lock()
        self._learning: Future[None] | None = None
        self._ask_last: Address | None = None

    @property
    def known(self) -> bool:
        """Return whether any node has ever told of the others."""
        return self._manager is not None

    def of(self, key: str) -> Address:
        """Return the node that has the slot of a key, as far as is known. Raises `TransientError` where none has."""
        try:
            node = self._told().get_node_from_slot(key_slot(key.encode()))
        except RedisClusterException:
            raise TransientError(f"Redis at {self._location.shown} has no node for {key!r} now") from None
        return node.host, int(node.port)

    def primaries(self) -> list[Address]:
        """Return every node that is known to have slots, or could."""
        return [(node.host, int(node.port)) for node in self._told().get_nodes_by_server_type("primary")]

    def _told(self) -> NodesManager:
        if self._manager is None:
            raise TransientError(f"Redis at {self._location.shown} is away: no node of the cluster has answered yet")
        return self._manager

    def moved(self, error: MovedError) -> None:
        """Note the node that now has a slot, as another node said."""
        manager = self._told()
        if error.host and error.slot_id in manager.slots_cache:
            manager.move_slot(error)

    def ask_last(self, address: Address) -> None:
        """Ask this node last, because it did not answer just now."""
        self._ask_last = address

    def learn(self, within_s: float) -> None:
        """Ask the nodes in turn until one tells of all. Raises after `within_s` seconds, or when none does."""
        with self._lock:
            learning = self._learning
            if learning is None or learning.done():
                learning = self._learning = _in_thread(self)
        try:
            learning.result(within_s)
        except TimeoutError:
            with self._lock:
                self._learning = None  # after a fork its thread is not there
            raise TransientError(
                f"Redis at {self._location.shown} is away: no node tells in time of its slots"
            ) from None

    def ask(self) -> None:
        """Have one of the known nodes tell of all; those of LOCATION stay known, whatever moves."""
        try:
            if self._manager is None:
                nodes = [ClusterNode(host, port) for host, port in self._location.nodes]
                self._manager = NodesManager(nodes, require_full_coverage=False, **self._options())
            else:
                last = None if self._ask_last is None else get_node_name(*self._ask_last)
                self._manager.initialize(list(self._location.nodes), last_failed_node_name=last)
        except (RedisClusterException, IndexError) as error:  # the second where no node has slots
            raise as_ours(_reason(error), self._location.shown) from None

    def _options(self) -> dict[str, Any]:
        tls = {"ssl": True} if self._location.make is SSLConnection else {}
        times = {"socket_timeout": ASK_S, "socket_connect_timeout": ASK_S}
        return {**self._location.options, **tls, **times, "protocol": 2, "client_name": "delayq"}


def _reason(error: Exception) -> Exception:
    """Return why the last node asked did not tell: redis-py wraps its error, and an error reply twice."""
    cause = error.__cause__
    if isinstance(cause, RedisClusterException) and isinstance(cause.__context__, ResponseError):
        return cause.__context__
    return cause if isinstance(cause, Exception) else ConnectionError("no node of the cluster has slots")


def _in_thread(nodes: Nodes) -> Future[None]:
    told: Future[None] = Future()

    def ask() -> None:
        try:
            nodes.ask()
            told.set_result(None)
        except Exception as error:  # noqa: BLE001 - for those who wait
            told.set_exception(error)

    threading.Thread(target=ask, name="delayq-cluster", daemon=True).start()
    return told
