"""Enqueue messages: all, or those that a Spark job has not sent before. It is done by operations (client/calls.py)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django_delayq.brokers.base import Enqueued, Header, NewMessage, OnConflict, in_order, pages
from django_delayq.brokers.redis.client import Argument, Call, Operation, as_int
from django_delayq.brokers.redis.records import flags_of, pack_options
from django_delayq.brokers.redis.shards import CallCells, Keys, load, names_of_sets, set_name
from django_delayq.brokers.redis.signing import MessageSigner
from django_delayq.core.errors import BrokerRefused

CALL = 100
"""The most messages of one script call, which then takes the server a few ms at most. Larger calls gain nothing."""

_CREATED, _RUNNING, _KEPT = 1, 2, 3
_Options = tuple[int | None, str]
_PLAIN: _Options = (None, "drop")


def enqueue(
    keys: Keys, cells: CallCells, messages: Sequence[NewMessage], on_conflict: OnConflict
) -> Operation[list[Enqueued]]:
    """Enqueue messages, up to `CALL` of one wait set with each script call.

    If an id waits in another wait set, its message is sent a second time, with that set among the keys of the call.
    """
    enqueued: dict[int, Enqueued] = {}
    groups = _group(messages, range(len(messages)), {})
    elsewhere: dict[int, str] = {}
    while groups:
        names = [cells.take() for _ in groups]
        try:
            replies = yield [
                _enqueue_call(
                    keys, cell, cells.number(), on_conflict, [messages[i] for i in group], elsewhere.get(group[0])
                )
                for cell, group in zip(names, groups, strict=True)
            ]
        finally:
            cells.release(names)
        elsewhere = {}
        for group, (dues, *there) in zip(groups, replies, strict=True):
            for i, due in zip(group, dues.split(), strict=True):
                enqueued[i] = Enqueued(messages[i].id, as_int(due), True)
            for position, outcome in zip(there[::2], there[1::2], strict=True):
                i = group[position - 1]
                if isinstance(outcome, bytes):
                    elsewhere[i] = _own_name(messages[i].id, outcome)
                else:
                    enqueued[i].created, enqueued[i].kept = outcome == _CREATED, outcome == _KEPT
                    enqueued[i].running = outcome in (_RUNNING, _KEPT)
        groups = _group(messages, elsewhere, elsewhere) if elsewhere else []
    return [enqueued[i] for i in range(len(messages))]


def _group(messages: Sequence[NewMessage], todo: Iterable[int], elsewhere: Mapping[int, str]) -> list[Sequence[int]]:
    """Group the positions in `todo` by wait set and options, and by the set in which their id waits.

    There are at most `CALL` in each.
    """
    if len(messages) == 1:  # a short cut for single sends
        return [[0]]
    groups: defaultdict[tuple[str, str, str | None, _Options], list[int]] = defaultdict(list)
    last: Header | None = None
    before = _PLAIN
    for i in todo:
        header, options = messages[i].header, _options_of(messages[i])
        if header is not last or options != before or elsewhere:  # most messages share the header of the one before
            group = groups[header.queue, header.key, elsewhere.get(i), options]
            last, before = header, options
        group.append(i)
    return [page for group in groups.values() for page in pages(group, CALL)]


def _options_of(message: NewMessage) -> _Options:
    return message.max_wait_ms, message.while_running


def _own_name(id: str, name: bytes) -> str:
    """Return the name of the wait set in which an id waits. Raises `BrokerRefused` if someone else wrote that name."""
    own = names_of_sets([name])
    if not own:
        raise BrokerRefused(
            f"Message {id!r} is there with a name that is no text: someone else writes under our prefix. Remove it "
            "(HDEL), or give this site a prefix of its own (OPTIONS['prefix'])."
        )
    return own[0]


def _enqueue_call(
    keys: Keys, cell: str, number: int, on_conflict: OnConflict, messages: list[NewMessage], elsewhere: str | None
) -> Call:
    header = messages[0].header
    wait = keys.wait(set_name(header.queue, header.key))
    names = [
        keys.msg,
        keys.state,
        keys.running,
        keys.suspect,
        keys.sets,
        keys.timer,
        keys.count,
        keys.calls + cell,
        keys.again,
        wait,
    ]
    if elsewhere is not None:
        names.append(keys.wait(elsewhere))
    max_wait_ms, while_running = _options_of(messages[0])
    how = f"{on_conflict},{'' if max_wait_ms is None else max_wait_ms},{while_running}"
    return Call(load("enqueue"), names, [number, how, keys.channel, keys.most_bytes, *_pack(messages, keys.signer)])


def _pack(messages: Sequence[NewMessage], signer: MessageSigner | None) -> list[Argument]:
    """Return the arguments of a script for messages. Each has three: its id, flags with due time, options with body."""
    arguments: list[Argument] = []
    header = messages[0].header
    flags, options = flags_of(header), pack_options(header)
    for message in messages:
        if message.header is not header:
            header = message.header
            flags, options = flags_of(header), pack_options(header)
        own = options
        if signer is not None:
            own = signer.signed(message.id, header.queue, header.key, flags, options, message.body)
        arguments += (message.id, flags + due_text(message.delay_ms, message.at_ms), own + message.body)
    return arguments


def due_text(delay_ms: int, at_ms: int | None) -> str:
    """Return a due time for Lua: "+n" for n ms from now by the server's clock, or else epoch ms."""
    return f"+{delay_ms}" if at_ms is None else str(at_ms)


def enqueue_once(
    keys: Keys, cells: CallCells, messages: Sequence[NewMessage], job: str, keep_ms: int
) -> Operation[list[int]]:
    """Enqueue the messages whose id does not wait or run, and is not in the ledger of the Spark job.

    Return 1 for each message that was taken, and 0 for every other one. The ledger is kept for `keep_ms`.
    """
    groups = _group(messages, range(len(messages)), {})
    if not groups:
        return []
    names = [cells.take() for _ in groups]
    try:
        replies = yield [
            _once_call(keys, cell, cells.number(), [messages[i] for i in group], job, keep_ms)
            for cell, group in zip(names, groups, strict=True)
        ]
    finally:
        cells.release(names)
    return in_order(groups, replies)


def _once_call(keys: Keys, cell: str, number: int, messages: list[NewMessage], job: str, keep_ms: int) -> Call:
    wait = keys.wait(set_name(messages[0].header.queue, messages[0].header.key))
    names = [keys.msg, keys.sets, keys.timer, keys.count, keys.calls + cell, wait, keys.job(job)]
    return Call(load("enqueue_once"), names, [number, keys.channel, keep_ms, *_pack(messages, keys.signer)])
