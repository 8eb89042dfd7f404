"""What a shell sees of `manage.py delayq`: exit codes, one clear line, no traceback, no secret."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from django_delayq.brokers import get_backend
from tests.commands.support import send
from tests.servers import Server

ROOT = Path(__file__).parents[2]
MEMORY = {"DJANGO_SETTINGS_MODULE": "tests.settings"}

Done = subprocess.CompletedProcess[str]


def delayq(env: dict[str, str], *args: str, stdout: int = subprocess.PIPE) -> Done:
    return subprocess.run(
        [sys.executable, "manage.py", "delayq", *args],
        cwd=ROOT,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def on(**alias: Any) -> dict[str, str]:
    """The environment of a process whose default alias is on Redis."""
    broker = {"BROKER": "django_delayq.brokers.redis.RedisBroker", **alias}
    return MEMORY | {"DELAYQ_TEST": json.dumps(broker)}


def assert_one_line(done: Done, *parts: str) -> None:
    """The command failed, and said why in one line."""
    assert done.returncode == 1, done
    assert done.stderr.count("\n") == 1, done
    for part in ("CommandError: ", *parts):
        assert part in done.stderr


def test_what_was_done_exits_0(process_env: dict[str, str]) -> None:
    send(get_backend(), "a")
    assert (delayq(process_env, "audit").returncode, delayq(process_env, "cancel", "a").returncode) == (0, 0)


def test_an_audit_that_does_not_add_up_exits_1(process_env: dict[str, str], redis_server: Server) -> None:
    send(get_backend(), "a")
    with redis_server.client() as client:
        client.hincrby("{delayq:0}:count", "sent", 1)
    done = delayq(process_env, "audit")
    assert_one_line(done, "audit: 1 difference")
    assert "difference: " in done.stdout


@pytest.mark.parametrize("args", [[], ["nope"], ["peek"], ["peek", "q", "-n", "0"], ["cancel"], ["rescue"], ["purge"]])
def test_a_wrong_command_line_exits_2(args: list[str]) -> None:
    assert delayq(MEMORY, *args).returncode == 2


def test_djangos_own_options_may_follow_the_subcommand() -> None:
    assert delayq(MEMORY, "status", "--settings=tests.settings", "--no-color", "-v", "2").returncode == 0


def test_what_the_system_checks_find_is_not_its_business() -> None:
    alias = {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "DATABASE": "nowhere"}
    done = delayq(MEMORY | {"DELAYQ_TEST": json.dumps(alias)}, "audit")
    assert (done.returncode, done.stderr) == (0, "")


def test_it_ends_quietly_when_nobody_reads_on() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        done = delayq(MEMORY, "status", stdout=nobody.fileno())
    assert (done.returncode, done.stderr) == (1, "")


def test_an_alias_that_is_not_configured_is_named_with_those_that_are() -> None:
    assert_one_line(delayq(MEMORY, "status", "--using", "elsewhere"), "'elsewhere'", "default")


def test_a_broker_that_is_away_is_one_line_without_its_password(tmp_path: Path) -> None:
    done = delayq(on(LOCATION=f"unix://:hush@{tmp_path}/none.sock"), "status")
    assert_one_line(done, "none.sock")
    assert "hush" not in done.stdout + done.stderr


def test_a_broker_that_refuses_the_password_is_one_line_without_it(start_redis: Callable[..., Server]) -> None:
    server = start_redis(requirepass="right")
    done = delayq(on(LOCATION=server.url.replace("right", "hush")), "status", "--traceback")
    assert done.returncode == 1
    assert "hush" not in done.stdout + done.stderr


def test_a_broker_that_refuses_the_password_is_one_line_beside_the_figures_of_the_store(
    start_redis: Callable[..., Server], sqlite_database: str
) -> None:
    server = start_redis(requirepass="right")
    store = {"DATABASE": "default", "STORE": {}}
    name = connections.settings[sqlite_database]["NAME"]
    files = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name)}}
    env = on(LOCATION=server.url.replace("right", "hush"), **store) | {"DELAYQ_TEST_DATABASES": json.dumps(files)}
    done = delayq(env, "status")
    assert_one_line(done, "default: ", "password")
    assert "pending 0, ready 0" in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_a_database_that_is_away_is_one_line(tmp_path: Path) -> None:
    nowhere = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "none" / "file")}}
    env = MEMORY | {"DELAYQ_TEST": json.dumps({"STORE": {}}), "DELAYQ_TEST_DATABASES": json.dumps(nowhere)}
    assert_one_line(delayq(env, "explain", "a"), "default: ", "unable to open database file")


@pytest.mark.parametrize("is_dict", [False, True], ids=["url", "dict"])
def test_the_embedded_server_stops_once_and_says_so(embedded_directory: Path, is_dict: bool) -> None:
    env = on(LOCATION={"embedded": str(embedded_directory)} if is_dict else f"embedded://{embedded_directory}")
    assert delayq(env, "status").returncode == 0
    assert delayq(env, "stop-embedded").stdout == f"stopped the embedded Redis on {embedded_directory}\n"
    assert delayq(env, "stop-embedded").stdout == f"no embedded Redis runs on {embedded_directory}\n"


def test_a_server_that_is_not_ours_is_not_stopped_and_its_password_not_shown() -> None:
    done = delayq(on(LOCATION="redis://:hush@127.0.0.1:1/0"), "stop-embedded")
    assert_one_line(done, "only embedded://")
    assert "hush" not in done.stderr
