"""Run operations on a cluster: send each node the calls for its slots, and put the replies back in order.

If a node is away, only the calls for that node fail. Callers that can do without it (`SkipUnavailable`) wait for it
only once; others wait as long as for a single server. MOVED is followed. Calls that a node can't answer now (TRYAGAIN,
CLUSTERDOWN, LOADING) are repeated. ASK is not followed: the call is repeated too, because it names many keys of a slot,
and while the slot moves no node has all of them.
"""

import inspect
import random
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from redis.cluster import ClusterNode, NodesManager, get_node_name
from redis.connection import AbstractConnection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import (
    MovedError,
    RedisClusterException,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)

from django_delayq.brokers.redis.client.calls import Call, Replies, Reply, SkipUnavailable
from django_delayq.brokers.redis.client.client import BUDGET, FAULTS, Client, Contact, RetryBudget, Steps, Transport
from django_delayq.brokers.redis.client.connections import Address, Location
from django_delayq.brokers.redis.client.errors import TransientError, broker_error
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.support.logging import logger

_TAKES_HINTS = "last_failed_node_name" in inspect.signature(NodesManager.initialize).parameters
"""Whether this redis-py (8 or newer) can be given more nodes to ask about slots, and which of them to ask last."""

AWAY_S = 1.0
"""Seconds for which callers that use `SkipUnavailable` don't ask a node that was found to be away."""

PROBE_S = 0.3
"""Seconds for which callers that use `SkipUnavailable` wait for a node that was away when they ask it again."""

ASK_S = 0.5
"""Seconds for which one node is asked about the slots of all nodes, before the next node is asked."""


class Node:
    """One node, and whether it is known to be away."""

    def __init__(self, address: Address, location: Location) -> None:
        self.address = address
        self.transport = Transport(location)
        self.away: BrokerUnavailable | None = None
        self._away_until = 0.0

    @property
    def is_given_up(self) -> bool:
        """Return whether the node was found to be away within the last `AWAY_S` seconds."""
        return time.monotonic() < self._away_until

    def is_away(self, error: BrokerUnavailable) -> None:
        """Note that the node did not answer, over a new connection or within the time-out."""
        self._away_until = time.monotonic() + AWAY_S
        before, self.away = self.away, error
        if before is None:
            logger.warning("A node of the cluster is away, and what its shards hold waits for it. %s", error)

    def answers(self) -> None:
        """Note that the node has answered."""
        self._is_well("The node %s of the cluster is back.")

    def is_replaced(self) -> None:
        """Note that other nodes have the slots of this node now."""
        self._is_well("What the node %s of the cluster held is with others now: nothing waits for it.")

    def _is_well(self, text: str) -> None:
        if self.away is not None:
            self.away, self._away_until = None, 0.0
            logger.info(text, self.transport.shown)


class ClusterPipeline:
    """The calls of one round trip to several nodes, and the outcome of each. Calls are named by their positions.

    `left` are the calls that must still be made. `must_learn` means that slots may have moved.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.skips_unavailable = isinstance(calls, SkipUnavailable)
        self.left = set(range(len(calls)))
        self.must_learn = False
        self._answers: dict[int, Reply] = {}
        self._errors: dict[int, BrokerUnavailable] = {}
        self._lost: set[int] = set()

    def calls_of(self, part: Sequence[int]) -> list[Call]:
        """Return the calls at these positions."""
        return [self.calls[i] for i in part]

    def answer(self, i: int, reply: Reply) -> None:
        """Note a reply to a call. If a call has several replies, an error counts, or else the lowest number."""
        both = [reply] if i not in self._answers else [self._answers[i], reply]
        self._answers[i] = next((each for each in both if isinstance(each, Exception)), None) or min(both)
        self.left.discard(i)

    def refuse(self, i: int, error: Exception) -> None:
        """Note an error reply to a call. Raises it if somebody must mend something."""
        if not isinstance(error, BrokerUnavailable):
            raise error from None
        if self.skips_unavailable or not isinstance(error, TransientError):
            self.fail_for_good([i], error)
        else:
            self.fail([i], error)

    def fail(self, part: Collection[int], error: BrokerUnavailable, *, must_learn: bool = False) -> None:
        """Note the error for calls that were not made, so that they are made again."""
        self.must_learn = self.must_learn or must_learn
        self._errors.update(dict.fromkeys(part, error))

    def lose(self, part: Collection[int], error: BrokerUnavailable) -> None:
        """Note the error for calls that may have been made. They are made again, and then count as repeated."""
        self._lost.update(part)
        self.fail(part, error, must_learn=True)

    def fail_for_good(self, part: Collection[int], error: BrokerUnavailable) -> None:
        """Note the error for calls that are not made again."""
        self.left.difference_update(part)
        self._errors.update(dict.fromkeys(part, error))

    def replies(self) -> Replies:
        """Return the reply of each call, or its last error.

        If all calls failed, and the error of the first one is not transient, raise that error.
        """
        errors = {i: error for i, error in self._errors.items() if i not in self._answers}
        if len(errors) == len(self.calls) and not isinstance(errors[0], TransientError):
            raise errors[0] from None
        replies = Replies(self._answers[i] if i in self._answers else errors[i] for i in range(len(self.calls)))
        replies.repeated_at, replies.is_partial = self._lost & self._answers.keys(), bool(errors)
        return replies


class SlotMap:
    """Which node has which slot, as far as this process knows. Before `learn` it knows only the nodes of LOCATION.

    redis-py's `NodesManager` keeps the map. It asks the nodes in a thread, so that callers can stop waiting in time.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._manager: NodesManager | None = None
        self._lock = threading.Lock()
        self._learning: Future[None] | None = None
        self._ask_last: Address | None = None

    @property
    def are_known(self) -> bool:
        """Return whether a node has ever said which node has which slots."""
        return self._manager is not None

    def node_of(self, key: str) -> Address:
        """Return the node that has the slot of a key, as far as is known. Raises `TransientError` if no node has it."""
        try:
            node = self._learnt().get_node_from_slot(key_slot(key.encode()))
        except RedisClusterException:
            raise TransientError(f"Redis at {self._location.shown} has no node for {key!r} now") from None
        return node.host, int(node.port)

    def primaries(self) -> list[Address]:
        """Return every primary node of the cluster, as far as is known, including nodes that have no slots yet."""
        return [(node.host, int(node.port)) for node in self._learnt().get_nodes_by_server_type("primary")]

    def _learnt(self) -> NodesManager:
        if self._manager is None:
            raise TransientError(f"Redis at {self._location.shown} is away: no node of the cluster has answered yet")
        return self._manager

    def moved(self, error: MovedError) -> None:
        """Note which node has a slot now, as a MOVED error says."""
        manager = self._learnt()
        if error.host and error.slot_id in manager.slots_cache:
            manager.move_slot(error)

    def ask_last(self, address: Address) -> None:
        """Have the next `learn` ask this node last, because it did not answer just now."""
        self._ask_last = address

    def learn(self, within_s: float) -> None:
        """Ask the nodes in turn until one says which node has which slots.

        Raises `TransientError` after `within_s` seconds, and the error of the last node if all fail.
        """
        with self._lock:
            learning = self._learning
            if learning is None or learning.done():
                learning = self._learning = Future()
                threading.Thread(target=self._tell, args=[learning], name="delayq-cluster", daemon=True).start()
        try:
            learning.result(within_s)
        except TimeoutError:
            with self._lock:
                self._learning = None  # its thread may not exist: a forked process has none
            raise TransientError(
                f"Redis at {self._location.shown} is away: no node tells in time of its slots"
            ) from None

    def _tell(self, learning: Future[None]) -> None:
        try:
            self._ask()
            learning.set_result(None)
        except Exception as error:  # noqa: BLE001 - raised where somebody waits for the result
            learning.set_exception(error)

    def _ask(self) -> None:
        """Ask the known nodes, and always those of LOCATION too, which node has which slots."""
        try:
            if self._manager is None:
                nodes = [ClusterNode(host, port) for host, port in self._location.nodes]
                self._manager = NodesManager(nodes, require_full_coverage=False, **self._options())
            elif _TAKES_HINTS:
                last = None if self._ask_last is None else get_node_name(*self._ask_last)
                self._manager.initialize(list(self._location.nodes), last_failed_node_name=last)
            else:
                self._manager.initialize()
        except (RedisClusterException, IndexError) as error:  # IndexError: no node has slots
            raise broker_error(_reason(error), self._location.shown) from None

    def _options(self) -> dict[str, Any]:
        tls = {"ssl": True} if self._location.make is SSLConnection else {}
        times = {"socket_timeout": ASK_S, "socket_connect_timeout": ASK_S}
        return {**self._location.options, **tls, **times, "protocol": 2, "client_name": "delayq"}


def _reason(error: Exception) -> Exception:
    """Return the error of the node that was asked last, unwrapped from redis-py's own errors."""
    cause = error.__cause__
    if isinstance(cause, RedisClusterException) and isinstance(cause.__context__, ResponseError):
        return cause.__context__
    return cause if isinstance(cause, Exception) else ConnectionError("no node of the cluster has slots")


class Cluster(Client):
    """The client for a cluster."""

    def __init__(self, location: Location) -> None:
        self.shown = location.shown
        self._location = location
        self._slots = SlotMap(location)
        self._known: dict[Address, Node] = {}

    def connect(self, timeout: float) -> AbstractConnection:
        # Any node will do, because a publication at one node reaches the listeners at all nodes.
        self._slots.learn(timeout)
        nodes = [self._node(address) for address in self._slots.primaries()]
        random.shuffle(nodes)
        error: Exception = TransientError(f"Redis at {self.shown} has no node")
        for node in sorted(nodes, key=lambda node: node.away is not None):
            try:
                return node.transport.connect(timeout)
            except FAULTS as fault:
                error = fault
        raise error

    def node_of(self, key: str) -> Address | None:
        try:
            return self._slots.node_of(key)
        except TransientError:
            return None

    def shown_at(self, key: str) -> str:
        address = self.node_of(key)
        return self.shown if address is None else self._node(address).transport.shown

    def contact(self, key: str) -> Contact | None:
        address = self.node_of(key)
        return None if address is None else self._node(address).transport.contact

    def close(self) -> None:
        for node in list(self._known.values()):
            node.transport.close()

    def round_trip(self, calls: Sequence[Call], budget: RetryBudget) -> Steps[Replies]:
        """Make calls, and repeat them until each is answered or given up, or the time is over."""
        pipeline = ClusterPipeline(calls)
        budget.begin()
        if not self._slots.are_known:
            yield partial(self._learn, budget)
        parts = [(node, part) for node, part in self._parts(pipeline) if node.away is None]
        yield from self._ask(pipeline, parts, None)
        while pipeline.left:
            if pipeline.must_learn:
                yield partial(self._learn, budget)
            yield from self._ask(pipeline, self._parts(pipeline), budget)
            pause = budget.next_pause() if pipeline.left else None
            if pause is None:
                break
            yield pause
        return pipeline.replies()

    def _ask(
        self, pipeline: ClusterPipeline, parts: list[tuple[Node, list[int]]], repeats: RetryBudget | None
    ) -> Steps[None]:
        """Send each node its calls, and note the outcomes. With `repeats`, use new connections."""
        outcomes = yield [
            (node.transport, pipeline.calls_of(part), None if repeats is None else self._timeout(pipeline, node))
            for node, part in parts
        ]
        for (node, part), outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, Exception):
                is_cut_off = isinstance(outcome, RedisTimeoutError) and repeats is not None and repeats.left <= 0
                self._lose(pipeline, part, node, outcome, is_new=repeats is not None and not is_cut_off)
            else:
                self._take(pipeline, part, node, outcome)

    def _node(self, address: Address) -> Node:
        if address not in self._known:
            self._known.setdefault(address, Node(address, self._location.at(address)))
        return self._known[address]

    def _learn(self, budget: RetryBudget) -> None:
        with suppress(TransientError):  # calls for slots that no node has get an error later
            self._slots.learn(min(budget.left, BUDGET))
            primaries = set(self._slots.primaries())
            for address, node in list(self._known.items()):
                if address not in primaries:
                    node.is_replaced()

    def _parts(self, pipeline: ClusterPipeline) -> list[tuple[Node, list[int]]]:
        """Return the remaining calls by node. Give up the calls for nodes that are away if the caller skips these."""
        parts: dict[Node, list[int]] = {}
        for i in sorted(pipeline.left):
            if pipeline.calls[i].keys:
                try:
                    parts.setdefault(self._node(self._slots.node_of(pipeline.calls[i].keys[0])), []).append(i)
                except TransientError as error:
                    pipeline.fail([i], error, must_learn=True)
        everywhere = [i for i, call in enumerate(pipeline.calls) if not call.keys]
        for node, part in list(parts.items()):
            part += everywhere
            if node.away is not None:
                pipeline.must_learn = True
                if pipeline.skips_unavailable and node.is_given_up:
                    pipeline.fail_for_good(part, node.away)
                    del parts[node]
        return list(parts.items())

    def _timeout(self, pipeline: ClusterPipeline, node: Node) -> float:
        return PROBE_S if pipeline.skips_unavailable and node.away is not None else BUDGET

    def _take(self, pipeline: ClusterPipeline, part: list[int], node: Node, replies: Sequence[Reply]) -> None:
        """Note the replies of a node."""
        node.answers()
        answers = list(zip(part, replies, strict=True))
        is_done = not any(isinstance(reply, ResponseError) and pipeline.calls[i].keys for i, reply in answers)
        if is_done:
            node.transport.contact.keep()
        for i, reply in answers:
            if not isinstance(reply, ResponseError):
                pipeline.answer(i, reply)
            elif isinstance(reply, MovedError):
                self._slots.moved(reply)
                pipeline.fail([i], TransientError(f"Redis at {node.transport.shown} says that its slot moved: {reply}"))
            elif pipeline.calls[i].keys:
                pipeline.refuse(i, broker_error(reply, node.transport.shown, pipeline.calls[i].name))
            elif is_done:
                pipeline.answer(i, reply)
            else:  # a WAIT for calls that failed: it is made again with them
                pipeline.fail_for_good([i], TransientError(str(reply)))

    def _lose(self, pipeline: ClusterPipeline, part: list[int], node: Node, fault: Exception, *, is_new: bool) -> None:
        """Note that a node has not answered. `is_new`: it was asked over a new connection, and had time to answer."""
        error = broker_error(fault, node.transport.shown)
        if not isinstance(error, BrokerUnavailable):
            raise error from None
        self._slots.ask_last(node.address)
        if is_new or isinstance(fault, RedisTimeoutError):
            node.transport.contact.lose()
        node.transport.close()  # the idle connections are probably broken too
        if is_new or (pipeline.skips_unavailable and isinstance(fault, RedisTimeoutError)):
            node.is_away(error)
            if pipeline.skips_unavailable:
                pipeline.fail_for_good(part, error)
                return
        pipeline.lose(part, error)
