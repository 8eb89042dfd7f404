"""Jobs in processes of their own, as a shell starts them."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from tests.docs.site import ROOT
from tests.servers.cluster import until

PATIENCE_S = 300
"""Seconds for a job to end, amid a suite that has both cores: after an executor was killed another Java starts."""


@contextmanager
def started(command: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process group that is no more after the block."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_amid(process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    """Wait for what happens while the process runs. Fails with what it has said if it ends before."""
    until(lambda: process.poll() is not None or holds(), PATIENCE_S)
    assert process.poll() is None, process.communicate()[0]
