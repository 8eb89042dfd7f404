"""Find what a transaction has registered last with `on_commit`, so that the next call can join it."""

from typing import Any, Protocol, TypeVar

H = TypeVar("H")


class Connection(Protocol):
    """The part of a Django connection that is needed here."""

    run_on_commit: Any
    savepoint_ids: Any


def last_hook(connection: Connection, kind: type[H]) -> H | None:
    """Return the object whose method was registered last with `on_commit`; None if that object is not a `kind`.

    Also return None if other savepoints are open now than at that registration: a rollback could then undo that
    call and not the next one, or the next one only.
    """
    if not connection.run_on_commit:
        return None
    savepoints, callback = connection.run_on_commit[-1][:2]
    hook = getattr(callback, "__self__", None)
    return hook if isinstance(hook, kind) and savepoints == set(connection.savepoint_ids) else None
