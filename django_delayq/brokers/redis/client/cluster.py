"""The exchange with a cluster: each node is sent the calls of its slots, and the replies are put back in order.

A node that is away fails its own calls only. Callers that can do without it say so (`SkipUnavailable`, see
`shards.reached`), and wait for it once; others wait as for a single server. MOVED is followed. What a node can't do now
(ASK and TRYAGAIN while a slot moves, CLUSTERDOWN, LOADING) is asked for again: our calls name many keys of a slot,
and no node has all of them while the slot moves.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from redis import TimeoutError as RedisTimeoutError
from redis.connection import AbstractConnection
from redis.exceptions import MovedError, ResponseError

from django_delayq.brokers.redis.client.budget import BUDGET, RetryBudget
from django_delayq.brokers.redis.client.calls import Call, Replies, Reply
from django_delayq.brokers.redis.client.cluster_pipeline import ClusterPipeline
from django_delayq.brokers.redis.client.errors import TransientError, as_ours
from django_delayq.brokers.redis.client.location import Address, Location
from django_delayq.brokers.redis.client.nodes import Nodes
from django_delayq.brokers.redis.client.server import FAULTS, Sent, Server
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.support.logging import logger

AWAY_S = 1.0
"""How long a node that is away is not asked again by callers that don't wait for it."""

PROBE_S = 0.3
"""How long these callers wait for it when it is asked again."""


class Node:
    """One node, and whether it is known to be away."""

    def __init__(self, address: Address, location: Location) -> None:
        self.address = address
        self.server = Server(location)
        self.away: BrokerUnavailable | None = None
        self._away_until = 0.0

    @property
    def is_given_up(self) -> bool:
        """Return whether the node was found to be away a moment ago."""
        return time.monotonic() < self._away_until

    def is_away(self, error: BrokerUnavailable) -> None:
        """Note that the node did not answer, over a new connection or for long enough."""
        self._away_until = time.monotonic() + AWAY_S
        before, self.away = self.away, error
        if before is None:
            logger.warning("A node of the cluster is away, and what its shards hold waits for it. %s", error)

    def answers(self) -> None:
        """Note that the node has answered."""
        self._is_well("The node %s of the cluster is back.")

    def is_replaced(self) -> None:
        """Note that other nodes have its slots now."""
        self._is_well("What the node %s of the cluster held is with others now: nothing waits for it.")

    def _is_well(self, text: str) -> None:
        if self.away is not None:
            self.away, self._away_until = None, 0.0
            logger.info(text, self.server.shown)


class Cluster:
    """The exchange with all nodes of a cluster."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._nodes = Nodes(location)
        self._known: dict[Address, Node] = {}

    def connect(self, timeout: float) -> AbstractConnection:
        """Open a connection to some node: what is published at one is heard at all."""
        self._nodes.learn(timeout)
        nodes = [self._node(address) for address in self._nodes.primaries()]
        random.shuffle(nodes)
        error: Exception = TransientError(f"Redis at {self._location.shown} has no node")
        for node in sorted(nodes, key=lambda node: node.away is not None):
            try:
                return node.server.connect(timeout)
            except FAULTS as fault:
                error = fault
        raise error

    def place_of(self, key: str) -> Address | None:
        try:
            return self._nodes.of(key)
        except TransientError:
            return None

    def shown_at(self, key: str) -> str:
        address = self.place_of(key)
        return self._location.shown if address is None else self._node(address).server.shown

    def unbroken_s(self, key: str) -> float:
        place = self.place_of(key)
        return 0.0 if place is None else self._node(place).server.contact.unbroken_s

    def hear(self, key: str, identity: bytes) -> None:
        if (place := self.place_of(key)) is not None:
            self._node(place).server.contact.hear(identity)

    def close(self) -> None:
        for node in list(self._known.values()):
            node.server.close()

    def begin(self, calls: Sequence[Call], patience: RetryBudget) -> Callable[[], Replies]:
        trip = ClusterPipeline(calls)
        patience.begin()
        if not self._nodes.known:
            self._learn(patience)
        sent = [
            (part, node, node.server.send(trip.calls_of(part), patience))
            for node, part in self._parts(trip)
            if node.away is None
        ]
        return partial(self._end, trip, sent, patience)

    def _end(
        self, trip: ClusterPipeline, sent: Sequence[tuple[list[int], Node, Sent]], patience: RetryBudget
    ) -> Replies:
        for part, node, on in sent:
            try:
                self._take(trip, part, node, node.server.receive(trip.calls_of(part), on, patience))
            except FAULTS as error:
                self._lose(trip, part, node, error, is_new=False)
        while trip.left:
            if trip.must_learn:
                self._learn(patience)
            for node, part in self._parts(trip):
                try:
                    replies = node.server.repeat(trip.calls_of(part), patience, self._timeout(trip, node))
                    self._take(trip, part, node, replies)
                except FAULTS as error:
                    self._lose(trip, part, node, error, is_new=patience.left > 0)
            pause = patience.next_pause() if trip.left else None
            if pause is None:
                break
            time.sleep(pause)
        return trip.replies()

    async def ask(self, calls: Sequence[Call], patience: RetryBudget) -> Replies:
        trip = ClusterPipeline(calls)
        patience.begin()
        if not self._nodes.known:
            await asyncio.to_thread(self._learn, patience)
        parts = [(node, part) for node, part in self._parts(trip) if node.away is None]
        await asyncio.gather(*(self._ask_first(trip, part, node) for node, part in parts))
        while trip.left:
            if trip.must_learn:
                await asyncio.to_thread(self._learn, patience)
            await asyncio.gather(*(self._ask_again(trip, part, node, patience) for node, part in self._parts(trip)))
            pause = patience.next_pause() if trip.left else None
            if pause is None:
                break
            await asyncio.sleep(pause)
        return trip.replies()

    async def _ask_first(self, trip: ClusterPipeline, part: list[int], node: Node) -> None:
        try:
            self._take(trip, part, node, await node.server.attempt(trip.calls_of(part)))
        except FAULTS as error:
            self._lose(trip, part, node, error, is_new=False)

    async def _ask_again(self, trip: ClusterPipeline, part: list[int], node: Node, patience: RetryBudget) -> None:
        try:
            timeout = patience.at_most(self._timeout(trip, node))
            self._take(trip, part, node, await node.server.arepeat(trip.calls_of(part), timeout))
        except FAULTS as error:
            self._lose(trip, part, node, error, is_new=patience.left > 0)

    def _node(self, address: Address) -> Node:
        if address not in self._known:
            self._known.setdefault(address, Node(address, self._location.at(address)))
        return self._known[address]

    def _learn(self, patience: RetryBudget) -> None:
        with suppress(TransientError):  # a call for a slot that no node has gets the error
            self._nodes.learn(min(patience.left, BUDGET))
            primaries = set(self._nodes.primaries())
            for address, node in list(self._known.items()):
                if address not in primaries:
                    node.is_replaced()

    def _parts(self, trip: ClusterPipeline) -> list[tuple[Node, list[int]]]:
        """Return the calls that are left to make, by node. Those that need not be waited for are given up here."""
        parts: dict[Node, list[int]] = {}
        for i in sorted(trip.left):
            if trip.calls[i].keys:
                try:
                    parts.setdefault(self._node(self._nodes.of(trip.calls[i].keys[0])), []).append(i)
                except TransientError as error:
                    trip.fail([i], error, must_learn=True)
        everywhere = [i for i, call in enumerate(trip.calls) if not call.keys]
        for node, part in list(parts.items()):
            part += everywhere
            if node.away is not None:
                trip.must_learn = True
                if trip.is_hasty and node.is_given_up:
                    trip.give_up(part, node.away)
                    del parts[node]
        return list(parts.items())

    def _timeout(self, trip: ClusterPipeline, node: Node) -> float:
        return PROBE_S if trip.is_hasty and node.away is not None else BUDGET

    def _take(self, trip: ClusterPipeline, part: list[int], node: Node, replies: Sequence[Reply]) -> None:
        """Take in what a node has answered."""
        node.answers()
        answers = list(zip(part, replies, strict=True))
        is_done = not any(isinstance(reply, ResponseError) and trip.calls[i].keys for i, reply in answers)
        if is_done:
            node.server.contact.keep()
        for i, reply in answers:
            if isinstance(reply, MovedError):
                self._nodes.moved(reply)
                trip.fail([i], TransientError(f"Redis at {node.server.shown} says that its slot moved: {reply}"))
            elif isinstance(reply, ResponseError) and not trip.calls[i].keys:
                if is_done:
                    trip.answer(i, reply)
                else:  # it waited for calls that failed, and waits again with their repeats
                    trip.give_up([i], TransientError(str(reply)))
            elif isinstance(reply, ResponseError):
                trip.refuse(i, as_ours(reply, node.server.shown, trip.calls[i].name))
            else:
                trip.answer(i, reply)

    def _lose(self, trip: ClusterPipeline, part: list[int], node: Node, fault: Exception, *, is_new: bool) -> None:
        """Note that a node has not answered; `is_new` where it was asked over a connection of its own."""
        error = as_ours(fault, node.server.shown)
        if not isinstance(error, BrokerUnavailable):
            raise error from None
        self._nodes.ask_last(node.address)
        if is_new or isinstance(fault, RedisTimeoutError):
            node.server.contact.lose()
        node.server.close()  # what ended one connection has likely ended them all
        if is_new or (trip.is_hasty and isinstance(fault, RedisTimeoutError)):
            node.is_away(error)
            if trip.is_hasty:
                trip.give_up(part, error)
                return
        trip.lose(part, error)
