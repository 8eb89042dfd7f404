"""Run operations on one Redis, or on a cluster of them, blocking or async: the door of this package."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from redis.exceptions import ResponseError, TimeoutError as RedisTimeoutError

from django_delayq.brokers.redis.client.calls import Call, Operation, Replies, proceed
from django_delayq.brokers.redis.client.cluster import Cluster
from django_delayq.brokers.redis.client.errors import TransientError, broker_error
from django_delayq.brokers.redis.client.location import Location
from django_delayq.brokers.redis.client.transport import (
    BUDGET,
    FAULTS,
    Contact,
    ErrorFactory,
    Outcome,
    Request,
    Requests,
    RetryBudget,
    Sent,
    Server,
    Step,
    Steps,
    Subscription,
)
from django_delayq.core.errors import BrokerUnavailable

R = TypeVar("R")


class Client:
    """The client of a broker: it runs the broker's operations."""

    def __init__(self, location: Location) -> None:
        self._servers: Cluster | OneServer = Cluster(location) if location.nodes else OneServer(location)
        self.node_of = self._servers.node_of
        self.shown_at = self._servers.shown_at
        self.close = self._servers.close

    def run(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Run an operation to its end, within `budget` seconds.

        Raises `on_unavailable` of the reason after that time, or `BrokerRefused`. A server that hangs or is away costs
        no more than that, nor than `BUDGET`, whether it hangs in connecting, sending or reading. Steps without a
        time-out of ours come on top: resolving a name, and starting an embedded server that is gone.
        """
        return self.begin(operation, budget, on_unavailable)()

    def begin(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> Callable[[], R]:
        """Send an operation's first calls. The returned function waits for the replies and runs it to its end."""
        budgeted = RetryBudget(budget, on_unavailable)
        return _begin(self._run(operation, budgeted), budgeted)

    async def arun(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Run an operation like `run`, on async connections of the running loop."""
        budgeted = RetryBudget(budget, on_unavailable)
        return await _arun(self._run(operation, budgeted), budgeted)

    def _run(self, operation: Operation[R], budget: RetryBudget) -> Steps[R]:
        try:
            calls = next(operation)
            while True:
                calls = proceed(operation, (yield from self._servers.round_trip(calls, budget)))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except TransientError as error:  # the operation's own
            raise budget.on_unavailable(str(error)) from None
        finally:
            operation.close()

    def subscribe(self, channels: Sequence[str], timeout: float = BUDGET) -> Subscription:
        """Listen to channels over a connection of its own. `timeout` is for connecting, in seconds."""
        shown = self._servers.shown
        try:
            return Subscription(self._servers.connect(timeout), shown, channels)
        except FAULTS as error:
            raise broker_error(error, shown) from None

    def refusal(self, key: str, said: str) -> str:
        """Return what an error reply of the server that has a key means, for people."""
        return str(broker_error(ResponseError(said), self.shown_at(key)))

    def unbroken_s(self, key: str) -> float:
        """Return for how many seconds the server of a key has answered each time, from the same data."""
        contact = self._servers.contact(key)
        return 0.0 if contact is None else contact.unbroken_s

    def hear(self, key: str, identity: bytes) -> None:
        """Note the identity of the data that the server of a key has."""
        if contact := self._servers.contact(key):
            contact.hear(identity)


class OneServer:
    """A single server, which has all keys: an error reply to one call fails the round trip."""

    def __init__(self, location: Location) -> None:
        self._server = Server(location)
        self.shown = location.shown
        self.connect = self._server.connect
        self.close = self._server.close

    def node_of(self, key: str) -> None:
        """Return None, because it is no cluster."""

    def shown_at(self, key: str) -> str:
        """Return where the server is."""
        return self.shown

    def contact(self, key: str) -> Contact:
        """Return the contact with the server."""
        return self._server.contact

    def round_trip(self, calls: Sequence[Call], budget: RetryBudget) -> Steps[Replies]:
        """Make the calls until they are answered or the time is over."""
        budget.begin()
        timeout = None
        while True:
            (outcome,) = yield [(self._server, calls, timeout)]
            is_repeat = timeout is not None
            error = self._error_in(outcome, calls)
            if error is None:
                self._server.contact.keep()
                return Replies(outcome, repeated=range(len(calls)) if is_repeat else ())  # type: ignore[arg-type]
            self.close()  # what ended one connection has likely ended them all
            if isinstance(error, TransientError) and (is_repeat or isinstance(outcome, RedisTimeoutError)):
                self._server.contact.lose()
            yield budget.pause_after(error)
            timeout = BUDGET

    def _error_in(self, outcome: Outcome, calls: Sequence[Call]) -> Exception | None:
        if isinstance(outcome, Exception):
            return broker_error(outcome, self.shown)
        for call, reply in zip(calls, outcome, strict=True):
            if isinstance(reply, ResponseError) and call.keys:
                return broker_error(reply, self.shown, call.name)
        return None


# The input and output that retries and routing ask for, on blocking connections or on the running loop.


def _begin(steps: Steps[R], budget: RetryBudget) -> Callable[[], R]:
    """Do the steps up to the first requests, which are sent. The returned function does the others."""
    try:
        step = next(steps)
        while not isinstance(step, list):
            step = steps.send(_do(step, budget))
    except StopIteration as stop:
        result: R = stop.value
        return lambda: result
    sent = _send(step, budget)
    return partial(_end, steps, step, sent, budget)


def _end(steps: Steps[R], requests: Requests, sent: Sequence[Sent], budget: RetryBudget) -> R:
    try:
        outcomes = _receive(requests, sent, budget)
        while True:
            outcomes = _do(steps.send(outcomes), budget)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _do(step: Step, budget: RetryBudget) -> list[Outcome]:
    if isinstance(step, list):
        return _receive(step, _send(step, budget), budget)
    if isinstance(step, float):
        time.sleep(step)
    else:
        step()
    return []


def _send(requests: Requests, budget: RetryBudget) -> list[Sent]:
    return [server.send(calls, budget, timeout) for server, calls, timeout in requests]


def _receive(requests: Requests, sent: Sequence[Sent], budget: RetryBudget) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for (server, calls, timeout), on in zip(requests, sent, strict=True):
        try:
            outcomes.append(server.receive(calls, on, budget, keep=timeout is None))
        except FAULTS as error:
            outcomes.append(error)
    return outcomes


async def _arun(steps: Steps[R], budget: RetryBudget) -> R:
    """Do all steps on the running loop."""
    try:
        step = next(steps)
        while True:
            step = steps.send(await _ado(step, budget))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def _ado(step: Step, budget: RetryBudget) -> Sequence[Outcome]:
    if isinstance(step, list):
        asked = [_aoutcome(request, budget) for request in step]
        return [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)  # a task costs
    if isinstance(step, float):
        await asyncio.sleep(step)
    else:
        await asyncio.to_thread(step)
    return ()


async def _aoutcome(request: Request, budget: RetryBudget) -> Outcome:
    server, calls, timeout = request
    try:
        return await server.ask(calls, budget, timeout)
    except FAULTS as error:
        return error
