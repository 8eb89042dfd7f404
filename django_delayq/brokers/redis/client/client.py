"""Run operations on one Redis: the connections to it, what goes over them, blocking or async, and for how long.

`Client` is the door of this package; `OneServer` is the client of one server, and cluster.py has that of several.
redis-py would repeat a script silently, ten times. Our connections have that off: a client repeats a call until its
time is up. Every one of our calls is safe to repeat (see lua/lib/call.lua).
"""

import asyncio
import contextlib
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from functools import partial
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

import redis
from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError, TimeoutError as RedisTimeoutError

from django_delayq.brokers.redis.client.calls import Argument, Call, Operation, PartialFailure, Replies, Reply
from django_delayq.brokers.redis.client.connections import Address, Location
from django_delayq.brokers.redis.client.errors import TransientError, broker_error
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable

BUDGET = 2.0
"""Seconds that one round trip may take in all, repeats included; and an operation that has no other budget."""

READING_S = 0.1
"""Seconds that reading the replies of one server may take when the time is over. They are there, if it is well."""

ErrorFactory = Callable[[str], Exception]
"""Returns the error, given the reason, for a call without an answer in time; it may have been done all the same."""

R = TypeVar("R")

FAULTS = (OSError, redis.RedisError, BrokerUnavailable, BrokerRefused)
"""The errors that asking a server may raise."""

Sent = AbstractConnection | Exception
"""A connection on which calls were sent, or the error that prevented it."""


class Client(ABC):
    """The client of a broker: it runs the broker's operations. `shown` says where its servers are."""

    shown: str

    def run(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Run an operation to its end, within `budget` seconds.

        Raises `on_unavailable` of the reason after that time, or `BrokerRefused`. Each wait for a server ends within
        the smaller of `budget` and `BUDGET`, whether it connects, sends or reads. Steps without a time-out of ours come
        on top: resolving a name, and starting an embedded server that is gone.
        """
        return self.begin(operation, budget, on_unavailable)()

    def begin(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> Callable[[], R]:
        """Send an operation's first calls. The returned function waits for the replies and runs it to its end."""
        budgeted = RetryBudget(budget, on_unavailable)
        return _begin(self._steps(operation, budgeted), budgeted)

    async def arun(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Run an operation like `run`, on async connections of the running loop."""
        budgeted = RetryBudget(budget, on_unavailable)
        return await _arun(self._steps(operation, budgeted), budgeted)

    def _steps(self, operation: Operation[R], budget: "RetryBudget") -> "Steps[R]":
        try:
            calls = next(operation)
            while True:
                replies = yield from self.round_trip(calls, budget)
                calls = operation.throw(PartialFailure(replies)) if replies.is_partial else operation.send(replies)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except TransientError as error:  # the operation's own
            raise budget.on_unavailable(str(error)) from None
        finally:
            operation.close()

    def subscribe(self, channels: Sequence[str], timeout: float = BUDGET) -> "Subscription":
        """Listen to channels over a connection of its own. `timeout` is for connecting, in seconds."""
        try:
            return Subscription(self.connect(timeout), self.shown, channels)
        except FAULTS as error:
            raise broker_error(error, self.shown) from None

    def refusal(self, key: str, said: str) -> str:
        """Return what an error reply of the server that has a key means, for people."""
        return str(broker_error(ResponseError(said), self.shown_at(key)))

    def unbroken_s(self, key: str) -> float:
        """Return for how many seconds the server of a key has answered each time, from the same data."""
        contact = self.contact(key)
        return 0.0 if contact is None else contact.unbroken_s

    def hear(self, key: str, identity: bytes) -> None:
        """Note the identity of the data that the server of a key has."""
        if contact := self.contact(key):
            contact.hear(identity)

    @abstractmethod
    def node_of(self, key: str) -> Address | None:
        """Return the node of a cluster that has a key, as far as that is known."""

    @abstractmethod
    def shown_at(self, key: str) -> str:
        """Return where the server is that has a key, for people."""

    @abstractmethod
    def contact(self, key: str) -> "Contact | None":
        """Return the contact with the server that has a key, as far as that is known."""

    @abstractmethod
    def connect(self, timeout: float) -> AbstractConnection:
        """Open a connection to some server. It belongs to the caller; `timeout` is in seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close the idle connections."""

    @abstractmethod
    def round_trip(self, calls: Sequence[Call], budget: "RetryBudget") -> "Steps[Replies]":
        """Make the calls until they are answered or the time is over."""


class OneServer(Client):
    """A single server, which has all keys: an error reply to one call fails the round trip."""

    def __init__(self, location: Location) -> None:
        self.shown = location.shown
        self._transport = Transport(location)

    def connect(self, timeout: float) -> AbstractConnection:
        """Open a connection to the server."""
        return self._transport.connect(timeout)

    def close(self) -> None:
        """Close the idle connections."""
        self._transport.close()

    def node_of(self, key: str) -> None:
        """Return None, because it is no cluster."""

    def shown_at(self, key: str) -> str:
        """Return where the server is."""
        return self.shown

    def contact(self, key: str) -> "Contact":
        """Return the contact with the server."""
        return self._transport.contact

    def round_trip(self, calls: Sequence[Call], budget: "RetryBudget") -> "Steps[Replies]":
        """Make the calls until they are answered or the time is over."""
        budget.begin()
        timeout = None
        while True:
            (outcome,) = yield [(self._transport, calls, timeout)]
            is_repeat = timeout is not None
            error = self._error_in(outcome, calls)
            if error is None:
                self._transport.contact.keep()
                replies = Replies(cast(list[Reply], outcome))
                if is_repeat:
                    replies.repeated_at = range(len(calls))
                return replies
            self.close()  # what ended one connection has likely ended them all
            if isinstance(error, TransientError) and (is_repeat or isinstance(outcome, RedisTimeoutError)):
                self._transport.contact.lose()
            yield budget.pause_after(error)
            timeout = BUDGET

    def _error_in(self, outcome: "Outcome", calls: Sequence[Call]) -> Exception | None:
        if isinstance(outcome, Exception):
            return broker_error(outcome, self.shown)
        for call, reply in zip(calls, outcome, strict=True):
            if isinstance(reply, ResponseError) and call.keys:
                return broker_error(reply, self.shown, call.name)
        return None


class RetryBudget:
    """The retry budget of one operation, in seconds."""

    def __init__(self, budget: float, on_unavailable: ErrorFactory) -> None:
        self.on_unavailable = on_unavailable
        self.is_short = budget < BUDGET
        self.is_limited = self.is_short
        self._until = self._give_up_at = self._read_until = time.monotonic() + budget
        self._pause = 0.01
        self._reason: str | None = None

    def begin(self) -> None:
        """Begin a round trip. Each server is asked at least once, unless the budget was short from the start."""
        until = time.monotonic() + BUDGET
        self._give_up_at = min(self._until, until)
        self._read_until = self._give_up_at if self.is_short else until
        self.is_limited = self.is_short

    @property
    def left(self) -> float:
        """Return the seconds that are left of the round trip."""
        return self._give_up_at - time.monotonic()

    def at_most(self, seconds: float) -> float:
        """Return `seconds`, or the time that is left of the round trip. Raises `TimeoutError` when it is over."""
        return min(_positive(self.left), seconds)

    @property
    def longest_wait(self) -> float:
        """Return the seconds that one wait for a server may take. Raises `TimeoutError` when they are over."""
        return _positive(self._read_until - time.monotonic()) if self.is_limited else BUDGET

    def time_out(self) -> None:
        """Note that a server did not answer in time: from here on, only what others have answered already is read."""
        self.is_limited = True

    def begin_reading(self) -> None:
        """Begin to read the answer of one server, with a moment to do so even if another has used up the time."""
        self._read_until = max(self._read_until, time.monotonic() + READING_S)

    def limit(self, connection: AbstractConnection) -> None:
        """Let the connection's next wait end in time: its own time-out may outlast what is left."""
        waiting = _socket_of(connection)
        waiting.settimeout(min(waiting.gettimeout() or BUDGET, self.longest_wait))

    def lift(self, connection: AbstractConnection) -> None:
        """Undo `limit`, for the next user of the connection."""
        _socket_of(connection).settimeout(BUDGET)

    def next_pause(self) -> float | None:
        """Return the seconds to wait before a call is repeated; None when the time is over."""
        self._pause = min(self._pause * 2, 0.25)
        return None if time.monotonic() + self._pause >= self._give_up_at else self._pause

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait before the call is repeated. Raises if that can't help, or the time is over."""
        if not isinstance(error, TransientError):
            raise error from None
        if self._reason is None or self.left > 0:  # the end of our own time is no new reason
            self._reason = str(error)
        pause = self.next_pause()
        if pause is None:
            raise self.on_unavailable(self._reason) from None
        return pause


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise redis.TimeoutError("it took too long")
    return seconds


def _socket_of(connection: AbstractConnection) -> socket.socket:
    # redis-py can limit a wait itself, but only of reading.
    if connection._sock is None:  # another thread has closed it
        raise redis.ConnectionError("the connection is closed")
    return cast(socket.socket, connection._sock)


class Contact:
    """The time for which this process has been in touch with a server."""

    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._was_made = self._is_lost = False
        self._since = -math.inf
        self._identity = b""

    def lose(self) -> None:
        """Note that no answer came in time, or over a new connection. A closed idle connection proves nothing."""
        self._is_lost = self._was_made  # without a contact before, none is lost

    def keep(self) -> None:
        """Note that the server has answered."""
        self._was_made = True
        if self._is_lost:
            self._since = self.clock()
            self._is_lost = False

    def hear(self, identity: bytes) -> None:
        """Note the identity of the server's data. Another one than before means that it was restarted or replaced."""
        if self._identity not in (b"", identity):
            self._since = self.clock()
        self._identity = identity

    @property
    def unbroken_s(self) -> float:
        """Return for how many seconds it has answered each time, from the same data; infinite if it always did."""
        return 0.0 if self._is_lost else self.clock() - self._since


class Transport:
    """A pool of connections that grows with the calls in flight.

    A reply may be the `ResponseError` that the server answered to that call; any other fault is raised.
    """

    def __init__(self, location: Location) -> None:
        self.shown = location.shown
        self.contact = Contact()
        self._location = location
        self._idle: deque[AbstractConnection] = deque()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()

    def connect(self, timeout: float = BUDGET) -> AbstractConnection:
        """Return a new, connected connection. It belongs to the caller; `timeout` is for connecting, in seconds."""
        connection = self._location.connection(timeout)
        connection.connect()
        return connection

    def close(self) -> None:
        """Close the idle connections. Those of an event loop close with it."""
        with contextlib.suppress(IndexError):  # another thread may empty it too
            while True:
                self._idle.pop().disconnect()

    def send(self, calls: Sequence[Call], budget: RetryBudget, timeout: float | None = None) -> Sent:
        """Send calls over an idle connection, or a new one. A fault is raised by `receive`.

        With `timeout` in seconds the connection is new: an idle one may be as dead as the last. No wait for it lasts
        longer than that, or than the time that is left.
        """
        connection = None
        try:
            if timeout is not None:
                connection = self.connect(budget.at_most(timeout))
            else:
                connection = self._take_idle() or self.connect(budget.longest_wait)
            if budget.is_limited:
                budget.limit(connection)
            connection.send_packed_command([b"".join(_pack(calls))])  # one piece: several take more room on their way
        except FAULTS as error:
            if connection is not None:
                connection.disconnect()
            return error
        return connection

    def _take_idle(self) -> AbstractConnection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if connection.pid == os.getpid():
                return connection
            connection.disconnect()  # it is the parent's: this process was forked
        return None

    def receive(self, calls: Sequence[Call], sent: Sent, budget: RetryBudget, *, keep: bool = True) -> list[Reply]:
        """Wait for the replies of calls that were sent. Then the connection is idle, unless it is not to be kept."""
        if isinstance(sent, Exception):
            raise sent
        if budget.is_limited:
            budget.begin_reading()
        try:
            replies, has_error = _read(sent, calls, budget)
            if has_error and (lost := _without_script(calls, replies)):
                sent.send_packed_command(_pack([calls[i] for i in lost], with_source=True))
                for i, reply in zip(lost, _read(sent, lost, budget)[0], strict=True):
                    replies[i] = reply
                has_error = _has_error(replies)
            if budget.is_limited:
                budget.lift(sent)
        except BaseException as error:
            sent.disconnect()  # replies may be unread
            if isinstance(error, redis.TimeoutError):
                budget.time_out()
            raise
        if keep and not has_error:
            self._idle.append(sent)
        else:
            sent.disconnect()  # after an error too: a failover may have moved the primary
        return replies

    async def ask(self, calls: Sequence[Call], budget: RetryBudget, timeout: float | None = None) -> list[Reply]:
        """Send calls and wait for the replies, like `send` and `receive`, on a connection of the running loop."""
        if timeout is not None:
            connection = self._location.async_connection(budget.at_most(timeout))
        else:
            idle = await self._idle_in_loop()
            connection = idle.pop() if idle else self._location.async_connection()
        is_kept = False
        try:
            # A connection's own time-out would outlast a short budget.
            async with asyncio.timeout(budget.left if budget.is_short else None):
                replies = await _aask(connection, calls)
            is_kept = timeout is None and not _has_error(replies)
        except TimeoutError:
            raise redis.TimeoutError("it took too long") from None
        finally:
            if is_kept:
                idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return replies

    async def _idle_in_loop(self) -> "deque[AsyncConnection]":
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = loop_connections = _LoopConnections()
            await anext(loop_connections.until_loop_ends)
        return self._loops[loop].idle


Request = tuple[Transport, Sequence[Call], float | None]
"""Calls for one server; with a time-out in seconds over a new connection, which is not waited for any longer."""

Requests = list[Request]
Outcome = list[Reply] | Exception
Step = Requests | float | Callable[[], None]
Steps = Generator[Step, Sequence[Outcome], R]


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
    return [transport.send(calls, budget, timeout) for transport, calls, timeout in requests]


def _receive(requests: Requests, sent: Sequence[Sent], budget: RetryBudget) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for (transport, calls, timeout), on in zip(requests, sent, strict=True):
        try:
            outcomes.append(transport.receive(calls, on, budget, keep=timeout is None))
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
    transport, calls, timeout = request
    try:
        return await transport.ask(calls, budget, timeout)
    except FAULTS as error:
        return error


class _LoopConnections:
    """The idle connections of one event loop. They close with it, because a loop ends its async generators first."""

    def __init__(self) -> None:
        self.idle: deque[AsyncConnection] = deque()
        self.until_loop_ends = self._until_loop_ends()

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            while self.idle:
                await self.idle.pop().disconnect()


class Subscription:
    """A connection that listens to channels, for one thread; another may close it."""

    def __init__(self, connection: AbstractConnection, shown: str, channels: Sequence[str]) -> None:
        self._connection = connection
        self._shown = shown
        self._is_closed = False
        connection.send_command("SUBSCRIBE", *channels)
        for _ in channels:
            connection.read_response()

    def next(self, quiet_s: float) -> tuple[bytes, bytes] | None:
        """Wait for what is published next, and return its channel and text; None once this is closed.

        After `quiet_s` seconds of silence the server is asked whether it lives. Raises `BrokerUnavailable` if it does
        not answer for as long again.
        """
        try:
            return self._next(quiet_s)
        except FAULTS as error:
            if self._is_closed:
                return None
            raise broker_error(error, self._shown) from None

    def close(self) -> None:
        """Close the connection, and end a running `next`. From any thread."""
        self._is_closed = True
        self._connection.disconnect()

    def _next(self, quiet_s: float) -> tuple[bytes, bytes]:
        is_asked = False
        while True:
            try:
                _socket_of(self._connection).settimeout(quiet_s)  # redis-py before 8 takes none for one reply
                reply = self._connection.read_response(disconnect_on_error=False)
            except redis.TimeoutError:
                if is_asked:
                    raise
                self._connection.send_command("PING")
                is_asked = True
                continue
            is_asked = False
            if reply[0] == b"message":
                return reply[1], reply[2]


def _pack(calls: Sequence[Call], *, with_source: bool = False) -> list[bytes]:
    # hiredis directly: redis-py looks at every argument in Python first, which costs more than the packing.
    return [pack_command(_command(call, with_source)) for call in calls]  # type: ignore[arg-type]  # their stub


def _command(call: Call, with_source: bool) -> tuple[Argument, ...]:
    """Return the command for the wire; `with_source` for a server that does not have the script yet."""
    script, keys, arguments = call
    if script is None:
        return tuple(arguments)
    if with_source:
        return ("EVAL", script.source, len(keys), *keys, *arguments)
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


def _has_error(replies: Sequence[Reply]) -> bool:
    return any(isinstance(reply, ResponseError) for reply in replies)


def _without_script(calls: Sequence[Call], replies: Sequence[Reply]) -> list[int]:
    """Return the positions of the calls to make again: those whose script the server lacks, and waits for them."""
    lost = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    return lost and [*lost, *(i for i, call in enumerate(calls) if not call.keys)]


async def _aask(connection: AsyncConnection, calls: Sequence[Call]) -> list[Reply]:
    await connection.connect()
    await connection.send_packed_command(_pack(calls))
    replies = [await _areply(connection) for _ in calls]
    if lost := _without_script(calls, replies):
        await connection.send_packed_command(_pack([calls[i] for i in lost], with_source=True))
        for i in lost:
            replies[i] = await _areply(connection)
    return replies


def _read(connection: AbstractConnection, calls: Sequence[object], budget: RetryBudget) -> tuple[list[Reply], bool]:
    """Return the replies to calls, and whether one is an error."""
    replies, has_error = [], False
    for _ in calls:
        if budget.is_limited:
            budget.limit(connection)
        try:
            replies.append(connection.read_response())
        except ResponseError as error:  # one call's answer: the replies of the others are still to be read
            replies.append(error)
            has_error = True
    return replies, has_error


async def _areply(connection: AsyncConnection) -> Reply:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
