"""Workers whose supervisor is told, or looks, whether they are alive: systemd, Kubernetes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.cluster import until
from tests.worker.processes import PATIENCE_S, Site

ROOT = Path(__file__).resolve().parents[2]
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has systemd, and shows the environment of a process")
def test_systemd_is_told_that_a_worker_is_ready_alive_and_stopping(site: Site) -> None:
    address = site.line.path.with_name("notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(PATIENCE_S)
        site.env["NOTIFY_SOCKET"] = str(address)
        site.send("a", key="hold")
        worker = site.worker("--processes", "1")
        assert systemd.recv(100) == b"READY=1"
        held = site.line.next()
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{held.pid}/environ").read_bytes()
        assert systemd.recv(100) == b"WATCHDOG=1"
        worker.signal(signal.SIGTERM)
        while (told := systemd.recv(100)) == b"WATCHDOG=1":
            pass
        assert told == b"STOPPING=1"
        assert systemd.recv(100) == b"WATCHDOG=1"  # it lives until what runs has ended
        held.release()
        assert worker.wait() == 0
    address.unlink()


def test_the_probes_of_the_manifest_tell_a_worker_that_works_from_one_that_hangs(site: Site, tmp_path: Path) -> None:
    alive = tmp_path / "delayq-alive"
    container = sample_container(alive)
    worker = site.worker(*container["args"][3:])
    worker.until_says("Connections at most")
    until(lambda: failing_probes(container) == [])
    worker.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)  # until it is
    os.utime(alive, (time.time() - 120,) * 2)
    assert failing_probes(container) == ["startupProbe", "readinessProbe"]
    os.utime(alive, (time.time() - 600,) * 2)
    assert failing_probes(container) == list(PROBES)
    worker.signal(signal.SIGCONT)
    until(lambda: failing_probes(container) == [])
    assert worker.stop() == 0


def sample_container(alive: Path) -> Any:
    """The worker's container in docs/how-to/deploy.md, with its heartbeat where the test looks."""
    page = (ROOT / "docs/how-to/deploy.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    pod = yaml.safe_load(text.replace("/tmp/delayq-alive", str(alive)))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return container


def failing_probes(container: Any) -> list[str]:
    """Return the probes that would say no now."""
    return [probe for probe in PROBES if subprocess.run(container[probe]["exec"]["command"]).returncode]
