"""Send many messages as one batch: another message follows once all of them have ended."""

from collections.abc import AsyncIterable, Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from types import TracebackType
from typing import Any, Unpack

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_delayq.api import registry
from django_delayq.api.bulk import checked_sends, send_delay_messages
from django_delayq.api.send import new_id, prepare, send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import NewMessage, Tables
from django_delayq.conf import DEFAULT_ALIAS, Alias
from django_delayq.core.batches import PREFIX, BatchDone, member_id
from django_delayq.core.codec import dumps, fields_of, loads, type_name
from django_delayq.core.errors import DelayqError, Unsupported
from django_delayq.core.message import Send, Sent, SentMany, Tags, When

_DONE = frozenset(field.name for field in fields(BatchDone))


class Batch:
    """A set of messages, and one that follows once all of them have ended: with their counts, and only once.

    ```python
    with Batch(on_done="import.done", data={"file": "orders.csv"}) as batch:
        batch.send("import.row", 1)
        batch.send_many(Send("import.row", row) for row in rows)
    ```

    The block is a transaction, or a part of yours: the members and the batch are committed together. The message that
    follows is put in the transaction that ends the last member. Its data is a `BatchDone`. It has the id of the batch,
    `batch:…`; each member has an id that begins with this. A batch without members is done at once.

    A member ends when it has finished, failed for good or was cancelled. What becomes of a failed one after that, such
    as a rescue, tells nothing more.

    In async code there is no block, but `asend_all`.
    """

    def __init__(
        self,
        on_done: str,
        *,
        data: Any = None,
        tag: Tags | None = None,
        queue: str | None = None,
        priority: int | None = None,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        self.id = f"{PREFIX}{new_id()}"
        self._using = using
        self._send = Send(on_done, None, tag=tag, queue=queue, priority=priority, id=self.id)
        self._data = data
        self._number = 0
        self._block: Any = None
        self._is_open = False

    def __enter__(self) -> "Batch":
        if self._block is not None:
            raise DelayqError(f"{self.id} was entered already; make a new Batch for each set.")
        backend = get_backend(self._using)
        store = self._store()
        self._check_on_done(backend.alias)
        told = {"batch": self.id, "total": 0, "finished": 0, "failed": 0, "cancelled": 0, "data": self._data}
        message = prepare(replace(self._send, data=told), backend.alias)
        self._message = replace(message, body=dumps(loads(message.body)["data"]))
        self._block = transaction.atomic(using=store.database.using)
        try:
            self._block.__enter__()
        except SynchronousOnlyOperation as error:
            raise SynchronousOnlyOperation(
                "This block is in async code: write `await Batch(...).asend_all(sends)`."
            ) from error
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is not None:
            self._block.__exit__(kind, error, frames)
            return
        try:
            self._create()
        except BaseException as failed:
            self._block.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._block.__exit__(None, None, None)

    def send(self, key: str, data: Any = None, **when: Unpack[When]) -> Sent:
        """Send one member, with options of `send_delay_message`, except `id` and `on_conflict`."""
        self._refuse_id(when.get("id"))
        if "using" in when:
            raise TypeError(f"using is an option of Batch(...): {self.id} has {self._using!r}; leave it out here.")
        self._check_open()
        when["id"] = self._next_id()
        return send_delay_message(key, data, using=self._using, **when)

    def send_many(self, sends: Iterable[Send]) -> SentMany:
        """Send many members, like `send_delay_messages`. None of them has an `id` of its own."""
        self._check_open()
        return send_delay_messages(self._members(sends), using=self._using)

    async def asend_all(self, sends: Iterable[Send] | AsyncIterable[Send]) -> SentMany:
        """Send the batch with all of its members, from async code: the whole block in one call.

        No block can stay open while the caller awaits, because Django's transactions belong to a thread, which other
        tasks use too. So an async iterable is read to its end first.
        """
        members = [send async for send in sends] if isinstance(sends, AsyncIterable) else sends
        return await sync_to_async(self._send_all)(members)

    def _send_all(self, sends: Iterable[Send]) -> SentMany:
        with self:
            return self.send_many(sends)

    def _members(self, sends: Iterable[Send]) -> Iterator[Send]:
        for send in checked_sends(sends):
            self._refuse_id(send.id)
            yield replace(send, id=self._next_id())

    def _check_on_done(self, alias: Alias) -> None:
        """Raise `TypeError` if the handler of what follows takes data without any field of a `BatchDone`."""
        handler = registry.find(alias.name, self._send.key)
        taken = None if handler is None else fields_of(handler.data_type)
        if handler is not None and taken is not None and taken.isdisjoint(_DONE):
            raise TypeError(
                f"on_done={self._send.key!r} gets a BatchDone, but its handler {registry.name_of(handler.func)} takes "
                f"{type_name(handler.data_type)}; annotate its argument Message[BatchDone]."
            )

    def _check_open(self) -> None:
        if self._is_open:
            return
        if self._block is None:
            raise DelayqError("a batch takes messages inside its block; write `with Batch(...) as batch:`.")
        raise DelayqError(f"{self.id} takes no more messages: its block has ended. Make a new Batch for them.")

    def _next_id(self) -> str:
        self._number += 1
        return member_id(self.id, self._number)

    def _refuse_id(self, id: str | None) -> None:
        if id is not None:
            raise TypeError(f"id={id!r}: the batch gives its members their ids; leave it out.")

    def _create(self) -> None:
        from django_delayq.store import batches  # late: the start of a site that only imports this needs no store

        store, message = self._store(), self._message
        store.note_lanes([NewMessage(message.id, message.header, b"")])
        create = partial(batches.create, id=self.id, header=message.header, data=message.body)
        store.change_follow_ups(lambda database: (None, create(database)))

    def _store(self) -> Tables:
        backend = get_backend(self._using)
        if backend.store is None:
            raise Unsupported(
                f"A batch needs a store, which counts its members: set up STORE in DELAYQ[{backend.alias.name!r}]."
            )
        return backend.store
