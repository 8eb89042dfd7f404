"""Run operations on one Redis, or on a cluster of them, blocking or async."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from redis.connection import AbstractConnection
from redis.exceptions import ResponseError, TimeoutError as RedisTimeoutError

from django_delayq.brokers.redis.client.budget import BUDGET as BUDGET, Lost as Lost, RetryBudget
from django_delayq.brokers.redis.client.calls import Call, Operation, Replies, proceed
from django_delayq.brokers.redis.client.cluster import Cluster
from django_delayq.brokers.redis.client.errors import TransientError, as_ours
from django_delayq.brokers.redis.client.location import Address, Location
from django_delayq.brokers.redis.client.server import FAULTS, Sent, Server
from django_delayq.core.errors import BrokerUnavailable

R = TypeVar("R")


class Transport(Protocol):
    """The transport of a round trip: it makes the calls until they are answered or the patience is over."""

    def begin(self, calls: list[Call], patience: RetryBudget) -> Callable[[], Replies]:
        """Send the calls. The returned function waits for the replies, and makes the calls again if need be."""

    async def ask(self, calls: list[Call], patience: RetryBudget) -> Replies:
        """Send the calls and wait for the replies, on the running loop."""

    def connect(self, timeout: float) -> AbstractConnection:
        """Open a new connection, for a caller that keeps it."""

    def place_of(self, key: str) -> Address | None:
        """Return the node of a cluster that has a key, as far as that is known."""

    def shown_at(self, key: str) -> str:
        """Return where the server is that has a key, for people."""

    def unbroken_s(self, key: str) -> float:
        """Return for how many seconds the server of a key has answered each time, from the same data."""

    def hear(self, key: str, identity: bytes) -> None:
        """Note whose data the server of a key has."""

    def close(self) -> None:
        """Close the idle connections."""


class Client:
    """The client of a broker: it runs the broker's operations."""

    def __init__(self, location: Location) -> None:
        self._exchange: Transport = Cluster(location) if location.nodes else OneServer(location)
        self.place_of = self._exchange.place_of
        self.shown_at = self._exchange.shown_at
        self.unbroken_s = self._exchange.unbroken_s
        self.hear = self._exchange.hear

    def run(self, operation: Operation[R], budget: float = BUDGET, lost: Lost = BrokerUnavailable) -> R:
        """Run an operation to its end. Raises `lost` of the reason after `budget` seconds, or `BrokerRefused`.

        A server that hangs or is away costs no more than that, nor than `BUDGET`, whether it hangs in connecting,
        sending or reading. Steps without a time-out of ours come on top: resolving a name, and starting an embedded
        server that is gone.
        """
        return self.begin(operation, budget, lost)()

    def begin(self, operation: Operation[R], budget: float = BUDGET, lost: Lost = BrokerUnavailable) -> Callable[[], R]:
        """Send an operation's first calls. The returned function waits for the replies and runs it to its end."""
        patience = RetryBudget(budget, lost)
        try:
            calls = next(operation)
        except StopIteration as stop:  # it had nothing to ask
            return partial(_same, stop.value)
        return partial(self._end, operation, self._exchange.begin(calls, patience), patience)

    def _end(self, operation: Operation[R], answered: Callable[[], Replies], patience: RetryBudget) -> R:
        try:
            while True:
                calls = proceed(operation, answered())
                answered = self._exchange.begin(calls, patience)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except TransientError as error:  # the operation's own
            raise patience.lost(str(error)) from None
        finally:
            operation.close()

    async def arun(self, operation: Operation[R], budget: float = BUDGET, lost: Lost = BrokerUnavailable) -> R:
        """Run an operation like `run`, on async connections of the running loop."""
        patience = RetryBudget(budget, lost)
        try:
            calls = next(operation)
            while True:
                calls = proceed(operation, await self._exchange.ask(calls, patience))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except TransientError as error:  # the operation's own
            raise patience.lost(str(error)) from None
        finally:
            operation.close()

    def connect(self, timeout: float = BUDGET) -> AbstractConnection:
        """Open a new connection, also for a caller that keeps it (the wake-up listener). `timeout` in seconds."""
        return self._exchange.connect(timeout)

    def close(self) -> None:
        """Close the idle connections. Those of an event loop close with it."""
        self._exchange.close()


class OneServer:
    """The exchange with a single server: an error reply to one call fails the round trip."""

    def __init__(self, location: Location) -> None:
        self._server = Server(location)
        self.connect = self._server.connect
        self.close = self._server.close

    def begin(self, calls: list[Call], patience: RetryBudget) -> Callable[[], Replies]:
        patience.begin()
        return partial(self._end, calls, self._server.send(calls, patience), patience)

    def place_of(self, key: str) -> None:
        """Return None, because it is no cluster."""

    def shown_at(self, key: str) -> str:
        """Return the server, which has all keys."""
        return self._server.shown

    def unbroken_s(self, key: str) -> float:
        return self._server.contact.unbroken_s

    def hear(self, key: str, identity: bytes) -> None:
        self._server.contact.hear(identity)

    def _end(self, calls: list[Call], sent: Sent, patience: RetryBudget) -> Replies:
        try:
            return Replies(self._heard(calls, self._server.receive(calls, sent, patience)))
        except FAULTS as error:
            self._pause_after(error, patience, is_new=False)
        while True:
            try:
                return Replies(self._heard(calls, self._server.repeat(calls, patience)), repeated=range(len(calls)))
            except FAULTS as error:
                self._pause_after(error, patience, is_new=True)

    def _pause_after(self, error: Exception, patience: RetryBudget, *, is_new: bool) -> None:
        self.close()  # what ended one connection has likely ended them all
        ours = as_ours(error, self._server.shown)
        if isinstance(ours, TransientError) and (is_new or isinstance(error, RedisTimeoutError)):
            self._server.contact.lose()
        time.sleep(patience.pause_after(ours))

    async def ask(self, calls: list[Call], patience: RetryBudget) -> Replies:
        patience.begin()
        try:
            return Replies(self._checked(calls, await self._server.attempt(calls)))
        except FAULTS as error:
            await asyncio.sleep(patience.pause_after(as_ours(error, self._server.shown)))
        while True:
            try:
                replies = self._checked(calls, await self._server.arepeat(calls, patience.left))
                return Replies(replies, repeated=range(len(calls)))
            except FAULTS as error:
                await asyncio.sleep(patience.pause_after(as_ours(error, self._server.shown)))

    def _heard(self, calls: list[Call], replies: list[object]) -> list[object]:
        checked = self._checked(calls, replies)
        self._server.contact.keep()
        return checked

    def _checked(self, calls: list[Call], replies: list[object]) -> list[object]:
        for call, reply in zip(calls, replies, strict=True):
            if call.keys and isinstance(reply, ResponseError):
                raise as_ours(reply, self._server.shown, call.name)
        return replies


def _same(value: R) -> R:
    return value
