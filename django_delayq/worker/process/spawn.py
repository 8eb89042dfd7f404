"""Start a Python process that must not outlive the process that starts it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def spawn(module: str, fds: Sequence[int], *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a fresh interpreter at `module`, whose first arguments are the inherited `fds` and this process's id.

    It is not forked: it shares no lock, no connection and no thread with this process. It is a session of its own, so
    that a terminal's Ctrl-C reaches only this process.
    """
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", module, *map(str, fds), str(os.getpid()), *arguments],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def death_of(code: int) -> str:
    """Return how a process died, from its exit code."""
    return f"its process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"


def die_with_parent(parent: int) -> None:
    """Have this process killed when the thread that started it ends, where the system can do that (Linux).

    The kernel does it, so it works even while a handler holds the interpreter's lock.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            os._exit(1)
