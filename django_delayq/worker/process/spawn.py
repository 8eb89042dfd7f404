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

    It is not forked, so it shares no lock, no connection and no thread with this process. It has a session of its own,
    so Ctrl-C in a terminal reaches only this process. It imports from where this process does, and from the working
    directory only if this process does too.
    """
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-m", module, *map(str, fds), str(os.getpid()), *arguments],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def death_of(code: int) -> str:
    """Return a text that says how a process died, from its exit code."""
    return f"its process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process `signum` when the thread that started it ends (on Linux; elsewhere do nothing).

    SIGKILL works even while a handler holds the interpreter's lock. End at once if `parent` is not the parent any more.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)
