"""Share one `on_commit` callback among many calls of a transaction."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

H = TypeVar("H")


def last_hook(connection: "BaseDatabaseWrapper", kind: type[H]) -> H | None:
    """Return the object whose method was registered last with `on_commit`, if it is of this kind.

    Return None if a savepoint was begun or ended after that, because a rollback to it may undo the one and keep the
    other.
    """
    if not connection.run_on_commit:
        return None
    savepoints, callback = connection.run_on_commit[-1][:2]
    hook = getattr(callback, "__self__", None)
    return hook if isinstance(hook, kind) and savepoints == set(connection.savepoint_ids) else None
