"""What is told to systemd, and what becomes of what can't be."""

import os
import secrets
import socket
import sys
from pathlib import Path

import pytest

from django_delayq.worker.lifecycle import READY, WATCHDOG, teller


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    teller()(READY)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sockets without a file")
def test_a_socket_may_be_in_no_directory_and_children_do_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"delayq-{secrets.token_hex(8)}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        teller()(READY)
        assert systemd.recv(100) == b"READY=1"
    assert "NOTIFY_SOCKET" not in os.environ


def test_a_socket_that_is_gone_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    tell = teller()
    tell(READY)
    tell(WATCHDOG)
    assert [record.getMessage() for record in caplog.records] == [
        "systemd can't be told READY=1: No such file or directory."
    ]
