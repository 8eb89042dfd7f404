"""Workers whose processes are dead, or only seem so, and those that look for them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any

from django_delayq.brokers.base import Backend, Claimed, ClaimRequest, Header, NewMessage, ProcessInfo, WorkerInfo
from django_delayq.worker.events import UnstartedEvents
from django_delayq.worker.takeover import Takeovers, processes_of, signature_of

LEASE_MS = 600_000
WANTS = [ClaimRequest("default", "k", 100)]
LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A program whose first thread ends before the others."""


@dataclass
class Dead:
    """A worker's process, and what it held."""

    process: "subprocess.Popen[bytes]"
    infos: list[ProcessInfo]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def until_state(self, state: str) -> None:
        """Wait until the kernel says that it is in a state."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != state:
            sleep(0.001)


@contextmanager
def other_process(code: str = "import time; time.sleep(600)") -> Iterator[Dead]:
    """A process that lives until it is killed."""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield Dead(process, processes_of(process.pid))
        finally:
            process.send_signal(signal.SIGKILL)


def hold(
    backend: Backend, ids: Sequence[str], processes: Sequence[ProcessInfo], worker: str = "theirs", **header: Any
) -> list[Claimed]:
    """Have a worker of these processes lease messages."""
    backend.queue.enqueue([NewMessage(id, Header("default", "k", **header), b"1") for id in ids])
    held: list[Claimed] = []
    while len(held) < len(ids):
        held += backend.queue.claim(WANTS, lease_ms=LEASE_MS, worker=worker).messages
        backend.queue.wait(0.001)
    info = WorkerInfo(worker, ["default"], ["k"], 0, 0, processes=list(processes))
    info.signature = signature_of(info)
    backend.presence.heartbeat(info)
    return held


def claim_again(backend: Backend, count: int) -> list[Claimed]:
    """Lease what was taken over, once it is there."""
    found: list[Claimed] = []
    while len(found) < count:
        found += backend.queue.claim(WANTS, lease_ms=LEASE_MS, worker="ours").messages
        backend.queue.wait(0.001)
    return found


def take_over(backend: Backend, takeovers: Takeovers | None = None) -> None:
    """Do what a worker does that starts, or once more what one does."""
    own = WorkerInfo("ours", ["default"], ["k"], 0, 0, processes=processes_of(os.getpid()))
    takeovers = takeovers or takeovers_of(backend)
    takeovers.learn(own)
    takeovers.take_over(own)


def takeovers_of(backend: Backend) -> Takeovers:
    """The watch of one worker."""
    return Takeovers(backend, UnstartedEvents("default", "ours", {}))


def _killed(dead: Dead) -> list[ProcessInfo]:
    dead.kill()
    return dead.infos


def _zombie(dead: Dead) -> list[ProcessInfo]:
    dead.process.kill()
    dead.until_state("Z")
    return dead.infos


def _used_again(dead: Dead) -> list[ProcessInfo]:
    """The number of a process that ended is that of a living one."""
    return [replace(one, started=one.started - 1) for one in dead.infos]


def _killed_with_its_supervisor(dead: Dead) -> list[ProcessInfo]:
    return [*_killed(dead), *_used_again(dead)]


GONE: dict[str, Callable[[Dead], list[ProcessInfo]]] = {
    "killed": _killed,
    "a zombie": _zombie,
    "its number used again": _used_again,
    "killed with its supervisor": _killed_with_its_supervisor,
}
"""What is to be found of a worker that is gone."""


def _stopped(dead: Dead) -> list[ProcessInfo]:
    dead.process.send_signal(signal.SIGSTOP)
    dead.until_state("T")
    return dead.infos


def _on_another_boot(dead: Dead) -> list[ProcessInfo]:
    return [replace(one, host=one.host.replace(one.host[:8], "0" * 8)) for one in _killed(dead)]


def _in_another_namespace(dead: Dead) -> list[ProcessInfo]:
    return [replace(one, host=one.host.replace("pid:[", "pid:[1")) for one in _killed(dead)]


def _on_a_copy_of_the_machine(dead: Dead) -> list[ProcessInfo]:
    return [replace(one, host=one.host.replace(os.uname().nodename, "copy")) for one in _killed(dead)]


def _of_an_older_version(dead: Dead) -> list[ProcessInfo]:
    dead.kill()
    return []


def _killed_under_its_supervisor(dead: Dead) -> list[ProcessInfo]:
    return [*_killed(dead), *processes_of(os.getpid())]


LIVING: dict[str, Callable[[Dead], list[ProcessInfo]]] = {
    "alive": lambda dead: dead.infos,
    "stopped": _stopped,
    "of another boot": _on_another_boot,
    "in another namespace": _in_another_namespace,
    "on a machine restored from the same snapshot": _on_a_copy_of_the_machine,
    "of an older version": _of_an_older_version,
    "killed under its supervisor": _killed_under_its_supervisor,
}
"""What is to be found of a worker that lives, or may live for all that is known."""
