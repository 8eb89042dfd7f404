"""Follow up: send one message after another, each some time after the one before has ended, until somebody stops it."""

from collections.abc import AsyncIterable, Iterable, Iterator, Sequence as Many
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from django_delayq.api.bulk import BATCH_BYTES, checked_batch_size, send_error
from django_delayq.api.operations import readable
from django_delayq.api.send import addressed, check_options, prepare, rule_text
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import NewMessage, Tables
from django_delayq.conf import DEFAULT_ALIAS, Alias
from django_delayq.core.errors import Unsupported
from django_delayq.core.human_time import At, Windows, check_windows
from django_delayq.core.message import Send, Sent, SentMany, Tags
from django_delayq.core.requests import BATCH, Enqueued
from django_delayq.core.sequences import MOST_STEPS, NewSequence, PlannedStep, message_of
from django_delayq.core.steps import StepName
from django_delayq.models import SequenceRow
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import check_name, check_new_name, check_not_own, short_repr


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a sequence: the key of its handler, and when its message is due after the end of the one before.

    `after` is a delay, and `at` a local time, such as `At(time="09:00", zone=…, days=3)`; with neither it is due at
    once. The first step counts from the start. The other options are those of `send_delay_message`.
    """

    key: str
    after: Duration | None = None
    _: KW_ONLY
    at: At | None = None
    window: Windows | None = None
    spread: Duration | None = None
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    expires: Duration | None = None
    timeout: Duration | None = None
    at_most_once: bool | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """One start for `Sequence.start_many`, with the arguments of `start`. They are checked when it is started."""

    data: Any = None
    _: KW_ONLY
    id: str
    tag: Tags | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """A sequence under way. Datetimes are in UTC.

    - `step`: the number of the step that it has come to, from 1, and `message_id` the id of its message.
    - `stopped_at`: when it was stopped while that message ran; None if it was not. Nothing comes after it then.
    - `keys`: the keys of all its steps.
    """

    name: str
    id: str
    keys: tuple[str, ...]
    step: int
    message_id: str
    data: Any
    started_at: datetime
    stopped_at: datetime | None


class Sequence:
    """Messages that follow one another: each is put in the transaction that ends the one before.

    ```python
    dunning = Sequence("dunning", [Step("dunning.mail", after="3d"), Step("dunning.call", after="7d", window=OFFICE)])

    dunning.start(invoice.pk, id=f"invoice:{invoice.pk}", tag=f"customer:{invoice.customer_id}")
    dunning.stop(f"invoice:{invoice.pk}")
    ```

    Write it at the top of a module, such as `delayed.py`. `name` is unique in its alias, and has neither ":" nor "@". A
    sequence that is under way keeps the steps with which it was started, whatever becomes of the code.

    A step that fails for good stands still. It shows among the failed messages, and once it was rescued and has
    finished, the next step follows. A step that is cancelled or purged ends the sequence.
    """

    def __init__(self, name: str, steps: Many[Step], *, using: str = DEFAULT_ALIAS) -> None:
        self.name = check_not_own(check_new_name(name, "name"), "name")
        if found := [character for character in ":@" if character in name]:
            raise ValueError(f"name={short_repr(name)} contains {found[0]!r}, which ids of steps have behind it.")
        if not isinstance(steps, list | tuple):
            raise TypeError(f"steps={short_repr(steps)} is {type(steps).__name__}; give a list of Step.")
        if not steps or len(steps) > MOST_STEPS:
            raise ValueError(f"steps={short_repr(steps)} has {len(steps)} steps; give 1 to {MOST_STEPS}.")
        for step in steps:
            _check(step)
        self.steps = tuple(steps)
        self.using = using
        of_alias = by_alias.setdefault(using, {})
        if name in of_alias:
            raise ValueError(f"name={short_repr(name)} belongs to another sequence already; give each its own.")
        of_alias[self.name] = self

    def __repr__(self) -> str:
        return f"<Sequence {self.name!r}>"

    def start(self, data: Any = None, *, id: str, tag: Tags | None = None, trace_id: str | None = None) -> Sent:
        """Put the first step, with `data`, as a part of the caller's transaction. Each step gets the same data.

        The message of a step has the id `<name>:<id>@<number>`, such as `dunning:invoice:17@1`, and all of them have
        the tags. If the sequence is under way with this id already, it stays as it is, and `created` is False. If that
        one was stopped and its last message still runs, or another message runs under the id of the first step,
        `running` is True, and this one begins when that has ended.

        Raises `Unsupported` without a store, and like `send_delay_message`.
        """
        alias, store = get_backend(self.using).alias, _store_of(self.using)
        new = self._new_sequence(alias, Start(data, id=id, tag=tag, trace_id=trace_id))
        (enqueued,) = self._put(store, [new])
        due_ms = enqueued.due_ms or None
        return Sent(enqueued.id, due_ms, enqueued.created, enqueued.running)

    async def astart(self, data: Any = None, *, id: str, tag: Tags | None = None, trace_id: str | None = None) -> Sent:
        """Start like `start`, from async code."""
        return await sync_to_async(self.start)(data, id=id, tag=tag, trace_id=trace_id)

    def start_many(self, starts: Iterable[Start], *, batch_size: int = BATCH) -> SentMany:
        """Start many: `dunning.start_many(Start(pk, id=f"invoice:{pk}") for pk in overdue)`. It is read lazily.

        Each is started like by `start`. They are a part of the caller's transaction; outside of one, each batch of at
        most `batch_size` commits by itself. `created` counts those that begin, and `running` those that find a message
        that runs: it is of a sequence that is under way and stays, or the new one begins when it has ended.

        Raises `TypeError` or `ValueError` for a wrong `batch_size`, and `Unsupported` without a store. Raises
        `SendError` for anything else that goes wrong, like `send_delay_messages`: `accepted` sequences were started or
        are under way, those with an id in `unknown` may be, and no later one was started.
        """
        alias, store, size = get_backend(self.using).alias, _store_of(self.using), checked_batch_size(batch_size)
        sent = SentMany()
        in_flight: list[NewSequence] = []
        try:
            for batch in _batches((self._new_sequence(alias, each) for each in _checked(starts)), size):
                in_flight = batch
                for answer in self._put(store, batch):
                    sent.created += answer.created
                    sent.running += answer.running
                sent.accepted += len(batch)
                in_flight = []
        except Exception as error:
            raise send_error(error, sent.accepted, [each.id for each in in_flight]) from error
        return sent

    async def astart_many(self, starts: Iterable[Start] | AsyncIterable[Start], *, batch_size: int = BATCH) -> SentMany:
        """Start like `start_many`, from async code. An async iterable is read to its end first."""
        listed = [each async for each in starts] if isinstance(starts, AsyncIterable) else starts
        return await sync_to_async(self.start_many)(listed, batch_size=batch_size)

    def stop(self, *ids: str, tag: str | None = None) -> int:
        """Stop sequences of this name: by the ids with which they were started, and all that have the `tag`.

        This is a part of the caller's transaction. Once it is committed, no further step starts, not even a retry of
        the one that runs; that one is let end. Return how many were under way.
        """
        return _stop(self.using, self.name, ids, tag)

    async def astop(self, *ids: str, tag: str | None = None) -> int:
        """Stop like `stop`, from async code."""
        return await sync_to_async(self.stop)(*ids, tag=tag)

    def get(self, id: str) -> SequenceInfo | None:
        """Return the sequence that is under way with this id; None if there is none."""
        from django_delayq.store import sequences  # late, as above

        database = _store_of(self.using).database
        with database.available(), database.telling_what_it_lacks():
            row = sequences.find(database, self.name, check_name(id, "id"))
        return None if row is None else sequence_info(row)

    def _put(self, store: Tables, new: Many[NewSequence]) -> list[Enqueued]:
        from django_delayq.store import sequences  # late: what only defines a sequence needs no store

        store.note_lanes(NewMessage(each.id, step.header, each.body) for each in new for step in each.plan)
        return store.change_follow_ups(partial(sequences.start, name=self.name, new=new))

    def _new_sequence(self, alias: Alias, start: Start) -> NewSequence:
        """Return a start with its steps to keep, its data and its tags. Raises like `send_delay_message`."""
        check_new_name(start.id, "id")
        message_id = StepName(self.name, start.id, len(self.steps)).message_id
        plan: list[PlannedStep] = []
        bodies: dict[bytes, str] = {}
        for step in self.steps:
            send = _send_of(step, data=start.data, id=message_id, tag=start.tag, trace_id=start.trace_id)
            message = prepare(send, alias)
            bodies.setdefault(message.body, step.key)
            after_ms = 0 if step.after is None else to_ms(step.after, "after")
            plan.append(PlannedStep(message.header, after_ms, _rule_of(step, send, alias)))
        if len(bodies) > 1:
            keys = " and ".join(map(repr, bodies.values()))
            raise TypeError(
                f"data={short_repr(start.data)} is other JSON for {keys}: let these handlers take one type."
            )
        (body,) = bodies
        return NewSequence(start.id, plan, body, plan[0].header.tags)


def _checked(starts: Iterable[Start]) -> Iterator[Start]:
    """Yield the starts. Raises `TypeError` for anything else, naming the value and the fix."""
    if isinstance(starts, Start):
        raise TypeError("starts is one Start; give an iterable of Start.")
    if not isinstance(starts, Iterable):
        raise TypeError(f"starts={short_repr(starts)} is {type(starts).__name__}; give an iterable of Start.")
    for start in starts:
        if not isinstance(start, Start):
            raise TypeError(f"{short_repr(start)} is {type(start).__name__}; give Start(data, id=...).")
        yield start


def _batches(new: Iterable[NewSequence], most: int) -> Iterator[list[NewSequence]]:
    """Yield sequences to start, as many as one transaction takes."""
    batch: list[NewSequence] = []
    size = 0
    for each in new:
        batch.append(each)
        size += len(each.body)
        if len(batch) == most or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


by_alias: dict[str, dict[str, Sequence]] = {}
"""The sequences of each alias in this process, by name."""


def registered_sequences() -> Iterator[Sequence]:
    """Yield the sequences of this process."""
    for of_alias in by_alias.values():
        yield from of_alias.values()


def stop_delay_sequences(*, tag: str, using: str | None = None) -> int:
    """Stop the sequences of all names that have the `tag`, like `Sequence.stop`. Return how many were under way."""
    return _stop(using, None, (), tag)


def _stop(using: str | None, name: str | None, ids: tuple[str, ...], tag: str | None) -> int:
    from django_delayq.store import sequences  # late, as above

    if not ids and tag is None:
        raise TypeError("there is no id and no tag; give the ids of sequences, (*ids), or tag=...")
    checked = [check_name(id, "id") for id in ids]
    if tag is not None:
        tag = check_name(tag, "tag")
    store = _store_of(using)
    return store.change_follow_ups(lambda database: (sequences.stop(database, name, checked, tag), []))


def sequence_info(row: SequenceRow) -> SequenceInfo:
    """Return what the row of a sequence says."""
    from django_delayq.store import sequences  # late, as above

    plan = sequences.plan_of(row)
    keys, version = tuple(step.header.key for step in plan), plan[0].header.version
    return SequenceInfo(
        name=row.name,
        id=row.sequence_id,
        keys=keys,
        step=row.step,
        message_id=row.message_id,
        data=readable(row.alias, keys[0], row.data.encode(), version),
        started_at=row.started_at,
        stopped_at=row.stopped_at,
    )


@dataclass(frozen=True, slots=True)
class Following:
    """A step that has not been put yet, and when it will be due if each before it ends as soon as it is due.

    `queue` is the lane of its queue for its priority.
    `due_at` is None if that can't be said: a step before it has failed, or a calendar raises.
    """

    number: int
    key: str
    queue: str
    due_at: datetime | None


def steps_to_come(row: SequenceRow) -> Iterator[tuple[int, PlannedStep]]:
    """Yield the steps that have not been put yet, each with its number: none if the sequence was stopped."""
    from django_delayq.store import sequences  # late, as above

    if row.stopped_at is None or row.restarts:
        first = 1 if row.stopped_at else row.step + 1
        yield from enumerate(sequences.plan_of(row)[first - 1 :], first)


def following(row: SequenceRow, ends_at: datetime | None) -> list[Following]:
    """Return the steps that follow the one that a sequence has come to, if that ends at `ends_at`.

    None means that nobody knows when it ends: it has failed.
    """
    found: list[Following] = []
    at_ms = None if ends_at is None else to_epoch_ms(ends_at)
    for number, step in steps_to_come(row):
        at_ms = _due_ms(step, StepName(row.name, row.sequence_id, number), at_ms)
        found.append(Following(number, step.header.key, step.header.queue, None if at_ms is None else from_ms(at_ms)))
    return found


def _due_ms(step: PlannedStep, name: StepName, from_here_ms: int | None) -> int | None:
    if from_here_ms is None:
        return None
    try:
        message = message_of(step, name, b"", from_here_ms)
    except Exception:  # noqa: BLE001 - a calendar is the site's code
        return None
    return from_here_ms + message.delay_ms if message.at_ms is None else max(message.at_ms, from_here_ms)


def _check(step: Step) -> None:
    if not isinstance(step, Step):
        raise TypeError(f"steps has {short_repr(step)}; give Steps, such as Step('dunning.mail', after='3d').")
    check_new_name(step.key, "key")
    if step.after is not None and step.at is not None:
        raise TypeError(
            f"after={short_repr(step.after)} and at={short_repr(step.at)} are both given; give one of them."
        )
    if step.at is not None and not isinstance(step.at, At):
        raise TypeError(f"at={short_repr(step.at)} is no At; give a local time, such as At('09:00', zone=..., days=3).")
    if step.after is not None:
        to_ms(step.after, "after")
    if step.spread is not None:
        to_ms(step.spread, "spread")
    if step.window is not None:
        check_windows(step.window)
    check_options(_send_of(step))


def _send_of(step: Step, **of_start: Any) -> Send:
    return Send(
        step.key,
        queue=step.queue,
        priority=step.priority,
        max_attempts=step.max_attempts,
        expires=step.expires,
        timeout=step.timeout,
        at_most_once=step.at_most_once,
        **of_start,
    )


def _rule_of(step: Step, send: Send, alias: Alias) -> str:
    """Return the local time, the window and the spread of a step as text. Raises `ValueError` if they have none."""
    _header, handler = addressed(send, alias)
    window = handler.window if step.window is None and handler is not None else step.window
    if window is None and step.spread is None and step.at is None:
        return ""
    if text := rule_text(alias, 0, step.at, window, step.spread):
        return text
    raise ValueError(f"step {step.key!r} has a calendar that can't be kept; give its name in CALENDARS, or dates.")


def _store_of(using: str | None) -> Tables:
    """Return the store, which sequences need. Raises `Unsupported` without one."""
    backend = get_backend(using)
    if backend.store is None:
        raise Unsupported(
            f"Sequences need a store, which remembers them: set up STORE in DELAYQ[{backend.alias.name!r}]."
        )
    return backend.store
