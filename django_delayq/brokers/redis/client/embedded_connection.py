"""Connections to an embedded server. Each starts the server when it connects, if it is gone."""

import asyncio
from pathlib import Path
from typing import Any

from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection

from django_delayq.brokers.redis.client.embedded import start
from django_delayq.brokers.redis.client.unix_connection import UnixConnection


class EmbeddedConnection(UnixConnection):
    """A connection to the server on `directory`."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._directory = directory

    def _connect(self) -> Any:
        self.path = start(self._directory)
        return super()._connect()


class AsyncEmbeddedConnection(AsyncUnixDomainSocketConnection):
    """A connection to the server on `directory`, for an event loop, which a start does not block."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(**options)
        self._directory = directory

    async def _connect(self) -> None:
        self.path = await asyncio.to_thread(start, self._directory)
        await super()._connect()  # type: ignore[no-untyped-call]
