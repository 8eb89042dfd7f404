"""Report messages that no hand has run: those that were buried all the same, and those that are gone."""

from collections.abc import Iterable, Mapping
from typing import Any

from django_delayq import signals
from django_delayq.api.handlers import Handler
from django_delayq.brokers.base import BuriedInfo
from django_delayq.support.logging import logger


class UnstartedEvents:
    """Reports them as `AttemptEvents` does attempts: a log line with the id and, for a buried one, `message_failed`."""

    def __init__(self, using: str, worker: str, handlers: Mapping[str, Handler[Any, Any]]) -> None:
        self._using = using
        self._worker = worker
        self._handlers = handlers

    def tell(self, buried: Iterable[BuriedInfo], ghosts: Iterable[str] = ()) -> None:
        """Report each once: whoever buries or drops a message calls this."""
        for info in buried:
            self._tell_buried(info)
        for id in ghosts:
            logger.error(
                "Message %r is gone: it was due or running here, and someone else removed its body.",
                id, extra={"id": id, "worker": self._worker},
            )  # fmt: skip

    def _tell_buried(self, info: BuriedInfo) -> None:
        identity = {"id": info.id, "key": info.key, "queue": info.queue, "attempt": info.failures + 1}
        logger.error(
            "Message %r (%s) is buried: %s", info.id, info.key, info.error, extra=identity | {"worker": self._worker}
        )
        signals.emit(
            signals.message_failed,
            self._handlers.get(info.key),
            **identity,
            using=self._using,
            error=info.error,
            exception=None,
        )
