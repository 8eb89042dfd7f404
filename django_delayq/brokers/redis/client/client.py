"""Run operations on Redis, on blocking or async connections, and repeat calls until the time is over.

`Client` is the interface of this package. `OneServer` is the client for one server; cluster.py has the client for a
cluster. redis-py would silently repeat a script ten times. Our connections have that off, and a client repeats calls
itself, within its budget. All our calls are safe to repeat (see lua/lib/call.lua).
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
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import redis
from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, UnixDomainSocketConnection
from redis.exceptions import NoScriptError, ResponseError, TimeoutError as RedisTimeoutError
from redis.retry import Retry

from django_delayq.brokers.redis.client.calls import Argument, Call, Operation, PartialFailure, Replies, Reply
from django_delayq.brokers.redis.client.connections import Address, Location
from django_delayq.brokers.redis.client.errors import TransientError, broker_error
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable

BUDGET = 2.0
"""Seconds that one round trip may take, with its repeats. It is also the budget of an operation that has no other."""

READING_S = 0.1
"""Seconds for reading the replies of one server after the time is over. A healthy server has sent them by then."""

SEND_BUFFER = 1024 * 1024
"""The size of a unix socket's send buffer in bytes; the system may grant less.

The default, about 200 KiB, is less than a thousand messages may take: the sender would wait while the server works, and
the server while the sender prepares the next messages. TCP enlarges its buffers by itself.
"""

ErrorFactory = Callable[[str, bool], Exception]
"""A function that returns the error for calls that got no reply in time.

It takes the reason, and whether the calls may have run: they can't have if no server could be connected to.
"""

R = TypeVar("R")

FAULTS = (OSError, redis.RedisError, BrokerUnavailable, BrokerRefused)
"""The errors that a call to a server may raise."""

Sent = AbstractConnection | Exception
"""A connection on which calls were sent, or the error that prevented it."""


def unavailable(reason: str, may_have_run: bool) -> BrokerUnavailable:
    """Return the error for calls of which it does not matter whether they have run."""
    return BrokerUnavailable(reason)


class Client(ABC):
    """A client of Redis, which runs operations. `shown` is the address of its servers without the password."""

    shown: str

    def run(self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = unavailable) -> R:
        """Run an operation to its end, within `budget` seconds, and return its result.

        After that time it raises the error that `on_unavailable` returns. It may also raise `BrokerRefused`. Each wait
        for a server, to connect, send or read, ends within the smaller of `budget` and `BUDGET`. Two things have no
        time-out of ours and may take longer: resolving a name, and starting an embedded server that is gone.
        """
        return self.begin(operation, budget, on_unavailable)()

    def begin(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = unavailable
    ) -> Callable[[], R]:
        """Send an operation's first calls, and return a function that does the rest of `run`."""
        budgeted = RetryBudget(budget, on_unavailable)
        return _begin(self._steps(operation, budgeted), budgeted)

    async def arun(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = unavailable
    ) -> R:
        """Run an operation like `run`, on async connections of the running event loop."""
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
        except TransientError as error:  # raised by the operation itself
            raise budget.error(str(error)) from None
        finally:
            operation.close()

    def subscribe(self, channels: Sequence[str], timeout: float = BUDGET) -> "Subscription":
        """Listen to channels over a new connection. `timeout` is the time for connecting, in seconds."""
        try:
            return Subscription(self.connect(timeout), self.shown, channels)
        except FAULTS as error:
            raise broker_error(error, self.shown) from None

    def refusal(self, key: str, reply: str) -> str:
        """Return a text for people about an error reply of the server that has a key."""
        return str(broker_error(ResponseError(reply), self.shown_at(key)))

    def unbroken_s(self, key: str) -> float:
        """Return for how many seconds the server that has a key has answered every call, with the same data."""
        contact = self.contact(key)
        return 0.0 if contact is None else contact.unbroken_s

    def was_lost_within(self, key: str, seconds: float) -> bool:
        """Return whether the server that has a key has left a call unanswered in the last `seconds`."""
        contact = self.contact(key)
        return contact is not None and contact.was_lost_within(seconds)

    def hear(self, key: str, identity: bytes) -> None:
        """Note the identity of the data on the server that has a key."""
        if contact := self.contact(key):
            contact.hear(identity)

    @abstractmethod
    def node_of(self, key: str) -> Address | None:
        """Return the node of a cluster that has a key; None if that is not known, or there is no cluster."""

    @abstractmethod
    def shown_at(self, key: str) -> str:
        """Return the address, without the password, of the server that has a key."""

    @abstractmethod
    def contact(self, key: str) -> "Contact | None":
        """Return the `Contact` of the server that has a key: since when it has answered. None if it is not known."""

    @abstractmethod
    def connect(self, timeout: float) -> AbstractConnection:
        """Open a connection to some server, which the caller must close. `timeout` is in seconds."""

    @abstractmethod
    def close(self) -> None:
        """Close the idle connections."""

    @abstractmethod
    def round_trip(self, calls: Sequence[Call], budget: "RetryBudget") -> "Steps[Replies]":
        """Make calls, and repeat them until they are answered or the time is over."""


class OneServer(Client):
    """The client for a single server. An error reply to any call but a WAIT makes the whole round trip fail."""

    def __init__(self, location: Location) -> None:
        self.shown = location.shown
        self._transport = Transport(location)

    def connect(self, timeout: float) -> AbstractConnection:
        return self._transport.connect(timeout)

    def close(self) -> None:
        self._transport.close()

    def node_of(self, key: str) -> None:
        """Return None, because there is no cluster."""

    def shown_at(self, key: str) -> str:
        return self.shown

    def contact(self, key: str) -> "Contact":
        return self._transport.contact

    def round_trip(self, calls: Sequence[Call], budget: "RetryBudget") -> "Steps[Replies]":
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
            self.close()  # the idle connections are probably broken too
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
    """The time that one operation may take, in seconds, with the repeats of its calls."""

    def __init__(self, budget: float, on_unavailable: ErrorFactory) -> None:
        self._on_unavailable = on_unavailable
        self.may_have_run = False
        """Whether calls were sent to a server."""
        self.is_short = budget < BUDGET
        self.is_limited = self.is_short
        self._until = self._deadline = self._read_until = time.monotonic() + budget
        self._pause = 0.01
        self._reason: str | None = None

    def begin(self) -> None:
        """Begin a round trip. Each server is asked at least once, unless the budget was short from the start."""
        until = time.monotonic() + BUDGET
        self._deadline = min(self._until, until)
        self._read_until = self._deadline if self.is_short else until
        self.is_limited = self.is_short

    @property
    def left(self) -> float:
        """Return the seconds that are left for the round trip."""
        return self._deadline - time.monotonic()

    def at_most(self, seconds: float) -> float:
        """Return `seconds`, or the time that is left for the round trip if that is less.

        Raises redis-py's `TimeoutError` if no time is left.
        """
        return min(_positive(self.left), seconds)

    @property
    def longest_wait(self) -> float:
        """Return the seconds that one wait for a server may take. Raises redis-py's `TimeoutError` if none is left."""
        return _positive(self._read_until - time.monotonic()) if self.is_limited else BUDGET

    def time_out(self) -> None:
        """Note that a server did not answer in time. From then on only replies that have come already are read."""
        self.is_limited = True

    def begin_reading(self) -> None:
        """Begin to read the replies of one server, with a moment for it even if another one has used up the time."""
        self._read_until = max(self._read_until, time.monotonic() + READING_S)

    def limit(self, connection: AbstractConnection) -> None:
        """Limit the connection's next wait to the time that is left, which may be less than its own time-out."""
        waiting = _socket_of(connection)
        waiting.settimeout(min(waiting.gettimeout() or BUDGET, self.longest_wait))

    def lift(self, connection: AbstractConnection) -> None:
        """Undo `limit`, for the next user of the connection."""
        _socket_of(connection).settimeout(BUDGET)

    def next_pause(self) -> float | None:
        """Return the seconds to wait before calls are repeated; None if the time is over."""
        self._pause = min(self._pause * 2, 0.25)
        return None if time.monotonic() + self._pause >= self._deadline else self._pause

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait after an error. Raises if a repeat can't help, or the time is over."""
        if not isinstance(error, TransientError):
            raise error from None
        if self._reason is None or self.left > 0:  # else the error is only that our own time is over
            self._reason = str(error)
        pause = self.next_pause()
        if pause is None:
            raise self.error(self._reason) from None
        return pause

    def error(self, reason: str) -> Exception:
        """Return the error for an operation that ran out of time."""
        return self._on_unavailable(reason, self.may_have_run)


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise redis.TimeoutError("it took too long")
    return seconds


def _socket_of(connection: AbstractConnection) -> socket.socket:
    # The time-out is set on the socket, because redis-py can limit only the waits for reading.
    if connection._sock is None:
        raise redis.ConnectionError("the connection is closed")
    return cast(socket.socket, connection._sock)


def connection_to(location: Location, timeout: float = BUDGET) -> AbstractConnection:
    """Return a connection that connects at its first command. `timeout` is in seconds, for connecting and each reply.

    redis-py's retries are off, because a claim that it repeats silently would lose messages. RESP2 is requested,
    because with RESP3 a server may send messages that nobody has asked for.
    """
    return location.make(**location.options, **_common(timeout), retry=Retry(NoBackoff(), 0))


def async_connection_to(location: Location, timeout: float = BUDGET) -> AsyncConnection:
    """Return a connection like `connection_to`, for the running event loop."""
    return location.make_async(**location.options, **_common(timeout), retry=AsyncRetry(NoBackoff(), 0))


def _common(timeout: float) -> dict[str, Any]:
    times = {"socket_connect_timeout": timeout, "socket_timeout": timeout}
    return {**times, "client_name": "delayq", "protocol": 2, "retry_on_timeout": False, "health_check_interval": 0}


class Contact:
    """The measure of how long a server has answered every call of this process, and has had the same data."""

    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._was_made = self._is_lost = False
        self._since = self._lost_at = -math.inf
        self._identity = b""

    def lose(self) -> None:
        """Note that no reply came in time, or that a new connection brought none. A broken idle one proves nothing."""
        self._is_lost = self._was_made  # a server that has never answered is not lost
        self._lost_at = self.clock()

    def keep(self) -> None:
        """Note that the server has answered."""
        self._was_made = True
        if self._is_lost:
            self._since = self.clock()
            self._is_lost = False

    def hear(self, identity: bytes) -> None:
        """Note the identity of the server's data. If it has changed, the server was restarted or replaced."""
        if self._identity not in (b"", identity):
            self._since = self.clock()
        self._identity = identity

    @property
    def unbroken_s(self) -> float:
        """Return for how many seconds the server has answered every call, with the same data; infinity if always."""
        return 0.0 if self._is_lost else self.clock() - self._since

    def was_lost_within(self, seconds: float) -> bool:
        """Return whether a call got no answer in the last `seconds`, be it that the server has never answered."""
        return self.clock() - self._lost_at <= seconds


class Transport:
    """The connections over which calls are sent to one server: one for each round trip in flight, and idle ones.

    A reply may be a `ResponseError`, if the server replied to that call with an error. Any other fault is raised.
    """

    def __init__(self, location: Location) -> None:
        self.shown = location.shown
        self.contact = Contact()
        self._location = location
        self._idle: deque[AbstractConnection] = deque()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()

    def connect(self, timeout: float = BUDGET) -> AbstractConnection:
        """Return a new connection, which the caller must close.

        `timeout`, in seconds, is the time for connecting, and also for each later wait on the connection.
        """
        connection = connection_to(self._location, timeout)
        connection.connect()
        if isinstance(connection, UnixDomainSocketConnection):
            _socket_of(connection).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return connection

    def close(self) -> None:
        """Close the idle connections. The connections of an event loop close with the loop."""
        with contextlib.suppress(IndexError):  # another thread may empty it at the same time
            while True:
                self._idle.pop().disconnect()

    def send(self, calls: Sequence[Call], budget: RetryBudget, timeout: float | None = None) -> Sent:
        """Send calls over an idle connection, or a new one. A fault is returned, and raised by `receive`.

        With `timeout`, in seconds, the connection is always new, because an idle one may be as broken as the last. Then
        no wait for it takes longer than `timeout`, or than the time that is left.
        """
        connection = None
        try:
            if timeout is not None:
                connection = self.connect(budget.at_most(timeout))
            else:
                connection = self._take_idle() or self.connect(budget.longest_wait)
            if budget.is_limited:
                budget.limit(connection)
            budget.may_have_run = True
            # In one piece, because several pieces take more room in the socket's buffer.
            connection.send_packed_command([b"".join(_pack(calls))])
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
            connection.disconnect()  # the parent uses it: this process was forked
        return None

    def receive(self, calls: Sequence[Call], sent: Sent, budget: RetryBudget, *, keep: bool = True) -> list[Reply]:
        """Return the replies to calls that were sent. Keep the connection as an idle one if `keep` is True."""
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
            sent.disconnect()  # also after an error reply: the primary may be another server now
        return replies

    async def ask(self, calls: Sequence[Call], budget: RetryBudget, timeout: float | None = None) -> list[Reply]:
        """Send calls and return the replies, like `send` and `receive`, on a connection of the running event loop."""
        if timeout is not None:
            connection = async_connection_to(self._location, budget.at_most(timeout))
        else:
            idle = await self._idle_in_loop()
            connection = idle.pop() if idle else async_connection_to(self._location)
        is_kept = False
        try:
            # A connection's own time-out is longer than a short budget.
            async with asyncio.timeout(budget.left if budget.is_short else None):
                await connection.connect()
                budget.may_have_run = True
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
"""Calls for one server. With a time-out, in seconds, they go over a new connection, and no wait for it takes longer."""

Requests = list[Request]
Outcome = list[Reply] | Exception
Step = Requests | float | Callable[[], None]
Steps = Generator[Step, Sequence[Outcome], R]


# Doing the steps of a client, on blocking connections or on the running event loop. A step is a list of requests, a
# pause in seconds, or a function to call.


def _begin(steps: Steps[R], budget: RetryBudget) -> Callable[[], R]:
    """Do the steps until the first requests are sent. Return a function that does the other steps."""
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
    """Do all steps on the running event loop, and return their result. A step that is a function runs in a thread."""
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
        return [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)  # a single request needs no task
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
    """The idle connections of one event loop. An async generator closes them, which the loop ends before it closes."""

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
    """A connection that listens to channels, for one thread. Another thread may interrupt it."""

    def __init__(self, connection: AbstractConnection, shown: str, channels: Sequence[str]) -> None:
        self._connection = connection
        self._shown = shown
        self._is_interrupted = False
        connection.send_command("SUBSCRIBE", *channels)
        for _ in channels:
            connection.read_response()

    def next(self, quiet_s: float) -> tuple[bytes, bytes] | None:
        """Wait for the next publication, and return its channel and text; None once this is interrupted.

        After `quiet_s` seconds without one the server is sent a PING. Raises `BrokerUnavailable` if it does not reply
        within the same time again.
        """
        try:
            return self._next(quiet_s)
        except FAULTS as error:
            if self._is_interrupted:
                return None
            raise broker_error(error, self._shown) from None

    def interrupt(self) -> None:
        """End the running `next` and all later ones. Any thread may call this.

        It doesn't close the connection: before redis-py 8, one thread can't close it while another one reads from it.
        """
        self._is_interrupted = True
        with contextlib.suppress(OSError, redis.ConnectionError):  # it is closed
            # An SSLSocket's own method takes the TLS away from under the thread that reads.
            socket.socket.shutdown(_socket_of(self._connection), socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Only the thread that listens may call this."""
        self._connection.disconnect()

    def _next(self, quiet_s: float) -> tuple[bytes, bytes]:
        is_asked = False
        while True:
            try:
                _socket_of(self._connection).settimeout(quiet_s)  # redis-py before 8 takes no time-out for one reply
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
    # By hiredis itself: redis-py first inspects every argument in Python, which takes longer than the packing.
    return [pack_command(_command(call, with_source)) for call in calls]  # type: ignore[arg-type]  # their stub


def _command(call: Call, with_source: bool) -> tuple[Argument, ...]:
    """Return the command to send; `with_source` for a server that does not have the script yet."""
    script, keys, arguments = call
    if script is None:
        return tuple(arguments)
    if with_source:
        return ("EVAL", script.source, len(keys), *keys, *arguments)
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


def _has_error(replies: Sequence[Reply]) -> bool:
    return any(isinstance(reply, ResponseError) for reply in replies)


def _without_script(calls: Sequence[Call], replies: Sequence[Reply]) -> list[int]:
    """Return the positions of the calls to repeat: calls whose script the server lacks, then all WAITs. [] for none."""
    lost = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    return lost and [*lost, *(i for i, call in enumerate(calls) if not call.keys)]


async def _aask(connection: AsyncConnection, calls: Sequence[Call]) -> list[Reply]:
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
        except ResponseError as error:  # the reply to one call: those to the other calls must still be read
            replies.append(error)
            has_error = True
    return replies, has_error


async def _areply(connection: AsyncConnection) -> Reply:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
