"""The command line of run_delayq: what it says, what it refuses, and its exit codes."""

import gc
import logging
import os
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from django_delayq import Message, delay_execute
from django_delayq.core.message import State
from django_delayq.management.commands import run_delayq
from django_delayq.management.commands.run_delayq import Command
from tests.servers import Server
from tests.worker.processes import Site


def test_drain_counts_what_it_left(site: Site) -> None:
    site.send("a", "b")
    site.send("c", key="unserved")
    site.broker.queue.reschedule(["b"], delay_ms=60_000)
    worker = site.worker("--drain")
    assert worker.wait() == 0
    assert "Drained: 1 finished, 0 to retry, 0 snoozed, 0 failed. " in worker.text
    assert "Left: 0 due, 1 not due, 1 parked, 0 paused, 0 running elsewhere." in worker.text
    assert site.see("c").state is State.READY


def test_the_banner_says_what_is_connected_and_served(site: Site, redis_server: Server) -> None:
    worker = site.worker("--queues", "default,bulk", "--threads", "3")
    worker.until_says("Connections at most")
    assert worker.stop() == 0
    assert str(redis_server.socket) in worker.text
    assert "Queues: default, bulk, in this order; lease 2s" in worker.text
    assert "run: queue default, thread, 3 at once" in worker.text
    assert "arun: queue default, async, 100 at once" in worker.text
    assert "Durability: " in worker.text


def test_no_collection_of_garbage_goes_through_the_site_s_code(site: Site) -> None:
    site.send("a", key="collect")
    assert site.worker("--drain").wait() == 0
    assert site.line.next().what == "frozen"


def test_a_process_that_calls_the_command_goes_on_collecting_its_garbage(
    registry: None, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.NOTSET, "django_delayq")  # the command sets it: it is as before at the end
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    ran: list[str] = []

    @delay_execute("k")
    def run(message: Message[None]) -> None:
        ran.append(message.id)

    run.send(None, id="a")
    call_command("run_delayq", drain=True, skip_checks=True, verbosity=0)
    assert (ran, gc.get_freeze_count()) == (["a"], 0)


def test_a_quiet_worker_says_only_what_it_drained(site: Site) -> None:
    site.send("a")
    worker = site.worker("--drain", "-v", "0")
    assert worker.wait() == 0
    assert worker.text.startswith("Drained: 1 finished")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--threads", "0"), "'0' is no such number; give 1 or more"),
        (("--queues", ","), "',' names no queue"),
        (("--queues", "critical,bulk:0"), "'bulk:0' gives the queue 'bulk' the weight '0'; give a whole number"),
        (("--reload", "--drain"), "--drain ends, and --reload starts again: leave one of them out"),
        (("--reload", "--max-messages", "1"), "--max-messages ends, and --reload starts again"),
        (("--max-memory", "512M"), "'512M' is no size; give bytes, or text such as '256KiB'"),
        (("--reload", "--max-memory", "1GiB"), "--max-memory ends, and --reload starts again"),
        (("--shutdown-timeout", "soon"), "'soon' is no number of seconds"),
        (("--shutdown-timeout", "-1"), "'-1' is no number of seconds"),
    ],
)
def test_a_wrong_option_names_its_value_and_exits_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        Command().run_from_argv(["manage.py", "run_delayq", "--skip-checks", *arguments])
    assert ending.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("place", ["missing/alive", "."], ids=["in no directory", "a directory"])
def test_a_heartbeat_file_that_cannot_be_touched_is_refused_at_start(site: Site, tmp_path: Path, place: str) -> None:
    worker = site.worker("--heartbeat-file", str(tmp_path / place))
    assert worker.wait() == 1
    assert f"The heartbeat file {tmp_path / place} " in worker.text
    assert "give --heartbeat-file a file in a directory" in worker.text
    assert "Traceback" not in worker.text


@pytest.mark.parametrize("leads_to", ["there", "nowhere"])
def test_a_heartbeat_file_that_is_a_link_is_refused_and_not_followed(site: Site, tmp_path: Path, leads_to: str) -> None:
    other = tmp_path / "there"
    other.write_text("someone else's")
    os.utime(other, (7, 7))
    (tmp_path / "alive").symlink_to(tmp_path / leads_to)
    worker = site.worker("--heartbeat-file", str(tmp_path / "alive"))
    assert worker.wait() == 1
    assert "is a link, which may lead to any file; give --heartbeat-file a file" in worker.text
    assert other.stat().st_mtime == 7
    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_alias_exits_1_without_a_traceback(site: Site) -> None:
    worker = site.worker("--using", "nowhere")
    assert worker.wait() == 1
    assert "DELAYQ has no alias 'nowhere'" in worker.text
    assert "Traceback" not in worker.text


def test_a_site_without_handlers_is_told_where_to_write_them(site: Site) -> None:
    site.env["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    worker = site.worker()
    assert worker.wait() == 1
    assert "has no handlers" in worker.text


def test_sigterm_while_redis_is_waited_for_exits_0_and_it_was_never_told_to_be_alive(
    site: Site, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    site.env["DELAYQ_TEST"] = site.env["DELAYQ_TEST"].replace("redis.sock", "missing.sock")
    worker = site.worker("--heartbeat-file", str(alive))
    worker.until_says("Trying again")
    assert worker.stop() == 0
    assert alive.stat().st_mtime == 0
    assert "Traceback" not in worker.text


def test_a_drain_that_finds_no_server_ends(
    registry: None, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each start by a timer would leave one more that waits."""
    caplog.set_level(logging.NOTSET, "django_delayq")  # the command sets it: it is as before at the end
    settings.DELAYQ = {"default": {"LOCATION": "redis://127.0.0.1:1", "STORE": None}}
    delay_execute("k")(lambda message: None)
    monkeypatch.setattr(run_delayq, "DRAIN_PATIENCE_S", 0.1)
    with pytest.raises(CommandError, match=r"127\.0\.0\.1:1"):
        call_command("run_delayq", drain=True, skip_checks=True, verbosity=0)
