"""Connections to one Redis, and the running of operations on them, blocking or async.

redis-py would repeat a script silently, ten times; our connections have that off, and repeating is done here: a call
that is safe to repeat (every one of ours is, see lua/lib/call.lua) is repeated until its time is up.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

import redis
from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from django_delayq.brokers.redis.foreign import describe, is_wrong_type, keys_of, refusal
from django_delayq.brokers.redis.locations import Location
from django_delayq.brokers.redis.replies import Passing, as_ours, check
from django_delayq.brokers.redis.scripts import Call, Operation, Replies, Reply, plain
from django_delayq.errors import BrokerRefused, BrokerUnavailable

BUDGET = 2.0
"""Seconds that one round trip may take in all, repeats included; and an operation, unless it is given another time."""

R = TypeVar("R")
Lost = Callable[[str], Exception]
"""The error for what could not be had in time, for this reason; it may have been done all the same."""
_FAULTS = (OSError, redis.RedisError, BrokerUnavailable, BrokerRefused)


class Links:
    """A pool of connections that grows with the calls in flight."""

    def __init__(self, location: Location) -> None:
        self.shown = location.shown
        self._location = location
        self._idle: deque[AbstractConnection] = deque()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()

    def run(self, operation: Operation[R], budget: float = BUDGET, lost: Lost = BrokerUnavailable) -> R:
        """Run an operation to its end. Raises `lost` of the reason after `budget` seconds, or `BrokerRefused`.

        A server that hangs or is away costs no more than that, nor than `BUDGET`, whatever of connecting, sending and
        reading it hangs in. What has no time-out of ours comes on top: resolving a name, and starting an embedded
        server that is gone.
        """
        return self.begin(operation, budget, lost)()

    def begin(self, operation: Operation[R], budget: float = BUDGET, lost: Lost = BrokerUnavailable) -> Callable[[], R]:
        """Send an operation's first calls. The function that is given waits for them and runs it to its end."""
        patience = _Patience(budget, lost)
        try:
            calls = next(operation)
        except StopIteration as stop:  # it had nothing to ask
            return partial(_same, stop.value)
        return partial(self._end, operation, calls, self._send(calls, patience), patience)

    def _end(self, operation: Operation[R], calls: list[Call], sent: "_Sent", patience: "_Patience") -> R:
        try:
            calls = operation.send(self._exchange(calls, patience, sent))
            while True:
                calls = operation.send(self._exchange(calls, patience, self._send(calls, patience)))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except Passing as error:  # the operation's own
            raise patience.lost(str(error)) from None
        finally:
            operation.close()

    async def arun(self, operation: Operation[R], budget: float = BUDGET, lost: Lost = BrokerUnavailable) -> R:
        """As `run`, on an async connection of the running loop."""
        patience = _Patience(budget, lost)
        try:
            calls = next(operation)
            while True:
                calls = operation.send(await self._aexchange(calls, patience))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except Passing as error:  # the operation's own
            raise patience.lost(str(error)) from None
        finally:
            operation.close()

    def connect(self, timeout: float = BUDGET) -> AbstractConnection:
        """A new connection, also for one who keeps it (the wake-up listener). `timeout` in seconds."""
        connection = self._location.connection(timeout)
        connection.connect()
        return connection

    def close(self) -> None:
        """Close the idle connections. Those of an event loop close with it."""
        self._drop_idle()

    def _drop_idle(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may empty it too
            while True:
                self._idle.pop().disconnect()

    def _exchange(self, calls: list[Call], patience: "_Patience", sent: "_Sent") -> Replies:
        replies = Replies()
        patience.begin()
        while True:
            try:
                replies[:] = self._repeat(calls, patience) if replies.repeated else self._receive(calls, sent, patience)
            except _FAULTS as error:
                self._drop_idle()  # what ended one connection has likely ended them all
                time.sleep(patience.pause_after(as_ours(error, self.shown)))
                replies.repeated = True
            else:
                return replies

    async def _aexchange(self, calls: list[Call], patience: "_Patience") -> Replies:
        replies = Replies()
        patience.begin()
        while True:
            try:
                replies[:] = await (self._arepeat(calls, patience.left) if replies.repeated else self._aattempt(calls))
            except _FAULTS as error:
                await asyncio.sleep(patience.pause_after(as_ours(error, self.shown)))
                replies.repeated = True
            else:
                return replies

    def _send(self, calls: list[Call], patience: "_Patience") -> "_Sent":
        connection = None
        try:
            connection = self._take(patience)
            patience.limit(connection)
            connection.send_packed_command(_pack(calls))
        except _FAULTS as error:  # told to the one who waits for the replies
            if connection is not None:
                connection.disconnect()
            return error
        return connection

    def _take(self, patience: "_Patience") -> AbstractConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect(patience.longest_wait)

    def _receive(self, calls: list[Call], sent: "_Sent", patience: "_Patience") -> list[Reply]:
        if isinstance(sent, Exception):
            raise sent
        try:
            replies = self._complete(sent, calls, [_reply(sent, patience) for _ in calls], patience)
            patience.lift(sent)
        except BaseException:
            sent.disconnect()  # replies may be unread, or a failover moved the primary
            raise
        self._idle.append(sent)
        return replies

    def _repeat(self, calls: list[Call], patience: "_Patience") -> list[Reply]:
        # A connection for this once: an idle one may be as dead as the last, and none may wait longer than is left.
        connection = self.connect(min(patience.left, BUDGET))
        try:
            return self._complete(connection, calls, _ask(connection, _pack(calls), patience), patience)
        finally:
            connection.disconnect()

    def _complete(
        self, connection: AbstractConnection, calls: list[Call], replies: list[Reply], patience: "_Patience"
    ) -> list[Reply]:
        lost = _without_script(replies)
        if lost:
            _fill(replies, lost, _ask(connection, _pack_source(calls, lost), patience))
        if is_wrong_type(replies):
            keys = keys_of(calls)
            self._name_foreign(keys, _ask(connection, _pack([plain("TYPE", key) for key in keys]), patience))
        check(replies, self.shown)
        return replies

    def _name_foreign(self, keys: list[str], types: list[Reply]) -> None:
        wrong = describe(keys, types)
        if wrong:
            raise BrokerRefused(refusal(self.shown, wrong))

    async def _aattempt(self, calls: list[Call]) -> list[Reply]:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = loop_connections = _LoopConnections()
            await anext(loop_connections.until_loop_ends)
        idle = self._loops[loop].idle
        connection = idle.pop() if idle else self._location.async_connection()
        try:
            replies = await self._aask_all(connection, calls)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        idle.append(connection)
        return replies

    async def _arepeat(self, calls: list[Call], left: float) -> list[Reply]:
        connection = self._location.async_connection(min(left, BUDGET))
        try:
            return await self._aask_all(connection, calls)
        finally:
            await connection.disconnect(nowait=True)

    async def _aask_all(self, connection: AsyncConnection, calls: list[Call]) -> list[Reply]:
        await connection.connect()
        replies = await _aask(connection, _pack(calls))
        lost = _without_script(replies)
        if lost:
            _fill(replies, lost, await _aask(connection, _pack_source(calls, lost)))
        if is_wrong_type(replies):
            keys = keys_of(calls)
            self._name_foreign(keys, await _aask(connection, _pack([plain("TYPE", key) for key in keys])))
        check(replies, self.shown)
        return replies


_Sent = AbstractConnection | Exception
"""A connection on which calls were sent, or why they were not."""


def _same(value: R) -> R:
    return value


class _LoopConnections:
    """The idle connections of one event loop. They close with it: a loop ends its async generators first."""

    def __init__(self) -> None:
        self.idle: deque[AsyncConnection] = deque()
        self.until_loop_ends = self._until_loop_ends()

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            while self.idle:
                await self.idle.pop().disconnect()


def _pack(calls: list[Call]) -> list[bytes]:
    # hiredis itself: redis-py's way to it looks at every argument in Python, which costs more than the packing.
    return [pack_command(call.command(with_source=False)) for call in calls]  # type: ignore[arg-type]  # their stub


def _pack_source(calls: list[Call], lost: list[int]) -> list[bytes]:
    return [pack_command(calls[i].command(with_source=True)) for i in lost]  # type: ignore[arg-type]  # their stub


def _without_script(replies: list[Reply]) -> list[int]:
    """Which calls the server did not have the script for: exactly those are made again."""
    return [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _fill(replies: list[Reply], positions: list[int], repeats: list[Reply]) -> None:
    for i, reply in zip(positions, repeats, strict=True):
        replies[i] = reply


def _ask(connection: AbstractConnection, commands: list[bytes], patience: "_Patience") -> list[Reply]:
    patience.limit(connection)
    connection.send_packed_command(commands)
    return [_reply(connection, patience) for _ in commands]


async def _aask(connection: AsyncConnection, commands: list[bytes]) -> list[Reply]:
    await connection.send_packed_command(commands)
    return [await _areply(connection) for _ in commands]


def _reply(connection: AbstractConnection, patience: "_Patience") -> Reply:
    patience.limit(connection)
    try:
        return connection.read_response()
    except ResponseError as error:  # one call's answer: the replies of the others are still to be read
        return error


async def _areply(connection: AsyncConnection) -> Reply:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _socket_of(connection: AbstractConnection) -> socket.socket:
    # redis-py's own way to limit a wait is one for reading only.
    return cast(socket.socket, connection._sock)


class _Patience:
    """How long one operation goes on trying."""

    def __init__(self, budget: float, lost: Lost) -> None:
        self.lost = lost
        self._until = self._give_up_at = time.monotonic() + budget
        self._is_short = budget < BUDGET
        self._pause = 0.01

    def begin(self) -> None:
        """Begin a round trip."""
        self._give_up_at = min(self._until, time.monotonic() + BUDGET)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self._until - time.monotonic()

    @property
    def longest_wait(self) -> float:
        """The seconds that one wait for the server may take. Raises `TimeoutError` when a short time is over."""
        if not self._is_short:
            return BUDGET
        left = self.left
        if left <= 0:
            raise redis.TimeoutError("it took too long")
        return left

    def limit(self, connection: AbstractConnection) -> None:
        """Let the connection's next wait end in time: its own time-out would outlast a short one."""
        if self._is_short:
            _socket_of(connection).settimeout(self.longest_wait)

    def lift(self, connection: AbstractConnection) -> None:
        """Undo `limit`, for who takes the connection next."""
        if self._is_short:
            _socket_of(connection).settimeout(BUDGET)

    def pause_after(self, error: Exception) -> float:
        """Seconds to wait before the call is repeated. Raises when that can't help, or its time is over."""
        if not isinstance(error, Passing):
            raise error from None
        self._pause = min(self._pause * 2, 0.25)
        if time.monotonic() + self._pause >= self._give_up_at:
            raise self.lost(str(error)) from None
        return self._pause
