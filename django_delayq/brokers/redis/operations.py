"""Cancel, reschedule, rescue and purge messages by their ids. These are operations (client/calls.py).

A script may only touch wait sets that are among its keys. If an id waits in another set, the script replies with the
name of that set, and a second call has it among its keys.
"""

from collections.abc import Callable, Sequence

from django_delayq.brokers.base import pages
from django_delayq.brokers.redis.client import Argument, Call, Operation
from django_delayq.brokers.redis.records import entry_id
from django_delayq.brokers.redis.shards import CallCells, Keys, load, names_of_sets, read

CALL = 200
"""The most ids that one script call takes."""

_MakeCall = Callable[[list[str], Sequence[str | bytes]], Call]


def cancel(keys: Keys, cells: CallCells, ids: Sequence[str], running_by: str | None = None) -> Operation[list[bool]]:
    """Remove waiting messages, and count them as cancelled. Return True for each that was waiting.

    If `running_by` says who asks, messages that run are marked, and count too.
    """
    return _move_waiting(keys, cells, "cancel", ("" if running_by is None else f"\x1f{running_by}",), ids)


def reschedule(keys: Keys, cells: CallCells, ids: Sequence[str], due: str) -> Operation[list[bool]]:
    """Give waiting messages a new due time, a result of `enqueue.due_text`. Return True for each that was waiting."""
    return _move_waiting(keys, cells, "reschedule", (due, keys.channel), ids)


def rescue(keys: Keys, ids: Sequence[str]) -> Operation[list[bool]]:
    """Make ready the message that was last buried under each id. Return True for each that was rescued."""
    entries = yield from find_entries(keys, ids)
    buried = [i for i, id in enumerate(ids) if id in entries]
    newest = [entries[ids[i]][-1] for i in buried]
    fixed = (keys.msg, keys.state, keys.error, keys.sets, keys.timer, keys.count)
    moved = yield from _look_then_move(
        newest,
        lambda names, some: Call(
            load("rescue"), [*fixed, *map(keys.wait, names)], [keys.channel, keys.most_bytes, *some]
        ),
    )
    rescued = dict(zip(buried, moved, strict=True))
    return [rescued.get(i, False) for i in range(len(ids))]


def purge(keys: Keys, cells: CallCells, ids: Sequence[str]) -> Operation[list[bool]]:
    """Remove waiting messages, and count them as purged. Return True for each that was waiting."""
    return _move_waiting(keys, cells, "purge", (), ids)


def purge_failed(keys: Keys, ids: Sequence[str]) -> Operation[list[bool]]:
    """Remove all messages buried under each id, and count them as purged. Return True for each id that had one."""
    entries = yield from find_entries(keys, ids)
    buried = [entry for id in dict.fromkeys(ids) for entry in entries.get(id, ())]
    yield from purge_entries(keys, buried)
    return [entries.pop(id, None) is not None for id in ids]


def purge_entries(keys: Keys, entries: Sequence[bytes]) -> Operation[None]:
    """Remove buried messages by their entries in `error`, and count them as purged."""
    names = (keys.error, keys.msg, keys.state, keys.count)
    if entries:
        yield [Call(load("purge_failed"), names, some) for some in pages(entries, CALL)]


def find_entries(keys: Keys, ids: Sequence[str]) -> Operation[dict[str, list[bytes]]]:
    """Return the entries of the messages buried under each id, oldest first. Reads the whole set, page by page."""
    wanted = set(ids)
    found: list[tuple[float, bytes]] = []
    cursor: int | bytes = 0
    while True:
        ((cursor, page),) = yield [read("ZSCAN", keys.error, cursor, "COUNT", 1000)]
        pairs = zip(page[::2], page[1::2], strict=True)
        found += [(float(score), entry) for entry, score in pairs if entry_id(entry) in wanted]
        if int(cursor) == 0:
            break
    entries: dict[str, list[bytes]] = {}
    for _, entry in sorted(set(found)):  # a scan may return an element twice
        entries.setdefault(entry_id(entry), []).append(entry)
    return entries


def _move_waiting(
    keys: Keys, cells: CallCells, script: str, how: Sequence[Argument], ids: Sequence[str]
) -> Operation[list[bool]]:
    taken: list[str] = []

    def make_call(names: list[str], some: Sequence[str | bytes]) -> Call:
        taken.append(cells.take())
        fixed = (keys.msg, keys.state, keys.sets, keys.count, keys.suspect, keys.running, keys.timer)
        keys_of_call = [*fixed, keys.calls + taken[-1], keys.again, *map(keys.wait, names)]
        return Call(load(script), keys_of_call, [cells.number(), *how, keys.most_bytes, *some])

    try:
        return (yield from _look_then_move(ids, make_call))
    finally:
        cells.release(taken)


def _look_then_move(ids: Sequence[str | bytes], make_call: _MakeCall) -> Operation[list[bool]]:
    """Call a script for the ids until it has replied 1 (moved) or 0 for each. Return True for each that was moved.

    If it replies with the name of a wait set, it is called again with that set among its keys.
    """
    moved = [False] * len(ids)
    todo = [list(page) for page in pages(range(len(ids)), CALL)]
    names: list[list[str]] = [[] for _ in todo]
    while todo:
        calls = [make_call(sets, [ids[i] for i in group]) for group, sets in zip(todo, names, strict=True)]
        replies = yield calls
        todo, names, before = [], [], todo
        for group, reply in zip(before, replies, strict=True):
            for i, answer in zip(group, reply, strict=True):
                moved[i] = answer == 1
            sets = names_of_sets(answer for answer in reply if isinstance(answer, bytes))
            if sets:
                todo.append([i for i, answer in zip(group, reply, strict=True) if isinstance(answer, bytes)])
                names.append(sets)
    return moved
