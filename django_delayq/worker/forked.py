"""A process that a handler forks is no worker, though it has copies of its leases, sockets and open transactions."""

import os
import sys
import traceback
from contextlib import suppress

_forks = 0
"""How many forks made this process from the first that imported this."""


def _count() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count)


class EndedOutside:
    """Ends what the block forks as soon as it comes out of the block: it would answer, commit and run on as a second
    worker.

    It ends like the processes of `multiprocessing`, without what is registered for the end of this one: with 0, with
    what it exits with, or with 1 after the traceback of what it raised.

    Each message runs in such a block: a generator in place of this class would cost three times as much.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _forks

    def __exit__(self, kind: object, exception: BaseException | None, frames: object) -> None:
        if _forks != self._before:
            _end(exception)


def _end(exception: BaseException | None) -> None:
    status = 0 if exception is None else 1
    with suppress(Exception):
        if isinstance(exception, SystemExit):
            status = _status_of(exception)
        elif exception is not None:
            traceback.print_exception(exception)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _status_of(exit_: SystemExit) -> int:
    if exit_.code is None or isinstance(exit_.code, int):
        return (exit_.code or 0) & 0xFF
    sys.stderr.write(f"{exit_.code}\n")
    return 1
