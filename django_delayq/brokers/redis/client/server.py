"""Connections to one Redis server, and the sending of a round trip's calls over them, blocking or async.

redis-py would repeat a script silently, ten times. Our connections have that off: the caller repeats a call until its
time is up. Every one of our calls is safe to repeat (see lua/lib/call.lua).
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from time import monotonic
from weakref import WeakKeyDictionary

import redis
from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from django_delayq.brokers.redis.client.budget import BUDGET, RetryBudget
from django_delayq.brokers.redis.client.calls import Call, Reply
from django_delayq.brokers.redis.client.location import Location
from django_delayq.core.errors import BrokerRefused, BrokerUnavailable

FAULTS = (OSError, redis.RedisError, BrokerUnavailable, BrokerRefused)
"""The errors that asking a server may raise."""

Sent = AbstractConnection | Exception
"""A connection on which calls were sent, or the error that prevented it."""


class Contact:
    """The time for which this process has been in touch with a server, as far as blocking calls tell."""

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
            self._since = monotonic()
            self._is_lost = False

    def hear(self, identity: bytes) -> None:
        """Note whose data the server has: after a restart or a replacement they are not those that were known."""
        if self._identity not in (b"", identity):
            self._since = monotonic()
        self._identity = identity

    @property
    def unbroken_s(self) -> float:
        """Return for how many seconds it has answered each time, from the same data; infinite if it always did."""
        return 0.0 if self._is_lost else monotonic() - self._since


class Server:
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
        """Open a new connection, also for a caller that keeps it (the wake-up listener). `timeout` in seconds."""
        connection = self._location.connection(timeout)
        connection.connect()
        return connection

    def close(self) -> None:
        """Close the idle connections. Those of an event loop close with it."""
        with contextlib.suppress(IndexError):  # another thread may empty it too
            while True:
                self._idle.pop().disconnect()

    def send(self, calls: Sequence[Call], patience: RetryBudget) -> Sent:
        """Send calls over an idle connection, or a new one. A fault is raised by `receive`."""
        connection = None
        try:
            connection = self._take(patience)
            patience.limit(connection)
            connection.send_packed_command([b"".join(_pack(calls))])  # one piece: several take more room on their way
        except FAULTS as error:
            if connection is not None:
                connection.disconnect()
            return error
        return connection

    def _take(self, patience: RetryBudget) -> AbstractConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect(patience.longest_wait)

    def receive(self, calls: Sequence[Call], sent: Sent, patience: RetryBudget) -> list[Reply]:
        """Wait for the replies of calls that were sent."""
        if isinstance(sent, Exception):
            raise sent
        try:
            replies = self._complete(sent, calls, [_reply(sent, patience) for _ in calls], patience)
            patience.lift(sent)
        except BaseException:
            sent.disconnect()  # replies may be unread
            raise
        if _has_error(replies):
            sent.disconnect()  # a failover may have moved the primary
        else:
            self._idle.append(sent)
        return replies

    def repeat(self, calls: Sequence[Call], patience: RetryBudget, timeout: float = BUDGET) -> list[Reply]:
        """Make calls over a new connection, for this once: an idle one may be as dead as the last.

        No wait lasts longer than `timeout` seconds, or than the time that is left.
        """
        connection = self.connect(patience.at_most(timeout))
        try:
            return self._complete(connection, calls, _ask(connection, _pack(calls), patience), patience)
        finally:
            connection.disconnect()

    def _complete(
        self, connection: AbstractConnection, calls: Sequence[Call], replies: list[Reply], patience: RetryBudget
    ) -> list[Reply]:
        if not _has_error(replies):
            return replies
        lost = _without_script(calls, replies)
        if lost:
            _fill(replies, lost, _ask(connection, _pack_source(calls, lost), patience))
        return replies

    async def attempt(self, calls: Sequence[Call]) -> list[Reply]:
        """Make calls over an idle connection of the running loop, or a new one."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = loop_connections = _LoopConnections()
            await anext(loop_connections.until_loop_ends)
        idle = self._loops[loop].idle
        connection = idle.pop() if idle else self._location.async_connection()
        try:
            replies = await self._ask_all(connection, calls)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if _has_error(replies):
            await connection.disconnect(nowait=True)
        else:
            idle.append(connection)
        return replies

    async def arepeat(self, calls: Sequence[Call], timeout: float) -> list[Reply]:
        """Make calls like `repeat`, on the running loop."""
        connection = self._location.async_connection(min(timeout, BUDGET))
        try:
            return await self._ask_all(connection, calls)
        finally:
            await connection.disconnect(nowait=True)

    async def _ask_all(self, connection: AsyncConnection, calls: Sequence[Call]) -> list[Reply]:
        await connection.connect()
        replies = await _aask(connection, _pack(calls))
        lost = _without_script(calls, replies)
        if lost:
            _fill(replies, lost, await _aask(connection, _pack_source(calls, lost)))
        return replies


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


def _pack(calls: Sequence[Call]) -> list[bytes]:
    # hiredis directly: redis-py looks at every argument in Python first, which costs more than the packing.
    return [pack_command(call.command(with_source=False)) for call in calls]  # type: ignore[arg-type]  # their stub


def _pack_source(calls: Sequence[Call], lost: list[int]) -> list[bytes]:
    return [pack_command(calls[i].command(with_source=True)) for i in lost]  # type: ignore[arg-type]  # their stub


def _has_error(replies: list[Reply]) -> bool:
    return any(isinstance(reply, ResponseError) for reply in replies)


def _without_script(calls: Sequence[Call], replies: list[Reply]) -> list[int]:
    """Return the calls whose script the server lacks, and those that wait for them: exactly these are repeated."""
    lost = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    return lost and [*lost, *(i for i, call in enumerate(calls) if not call.keys)]


def _fill(replies: list[Reply], positions: list[int], repeats: list[Reply]) -> None:
    for i, reply in zip(positions, repeats, strict=True):
        replies[i] = reply


def _ask(connection: AbstractConnection, commands: list[bytes], patience: RetryBudget) -> list[Reply]:
    patience.limit(connection)
    connection.send_packed_command(commands)
    return [_reply(connection, patience) for _ in commands]


async def _aask(connection: AsyncConnection, commands: list[bytes]) -> list[Reply]:
    await connection.send_packed_command(commands)
    return [await _areply(connection) for _ in commands]


def _reply(connection: AbstractConnection, patience: RetryBudget) -> Reply:
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
