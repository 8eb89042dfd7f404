"""The caller's transaction, which a send is a part of or waits for: that on the database of its alias, and no other."""

import os
import sys
import warnings

from django.db import connections

from django_delayq.conf import Alias

_PACKAGE = os.path.join(os.path.dirname(__file__), "")


def is_in_transaction(alias: Alias) -> bool:
    """Whether the alias's database is in `atomic()`."""
    return connections[alias.database].in_atomic_block


def warn_of_others(alias: Alias) -> None:
    """Warn whoever sends while only other databases are in `atomic()`: they may have meant one of these."""
    if len(connections.settings) == 1 or is_in_transaction(alias):
        return
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            warnings.warn(
                f"A send to {alias.name!r} takes no part in the transaction on database {connection.alias!r}: "
                f'only one on {alias.database!r} is joined (DELAYQ["{alias.name}"]["DATABASE"]).',
                RuntimeWarning,
                stacklevel=_level_of_caller(),
            )


def _level_of_caller() -> int:
    """The `stacklevel`, for who calls this, of the site's line that called into this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
