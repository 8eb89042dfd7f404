"""`delayq list`, `cancel`, `reschedule` and `run-now` choose messages by tag, key and the beginning of the id."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq import get_delay_message, list_delay_messages, send_delay_message
from django_delayq.core.message import State
from tests.commands.support import delayq

Answer = Callable[[str], None]


@pytest.fixture(autouse=True)
def messages(sqlite_database: str, settings: Settings) -> None:
    settings.DELAYQ = {
        "default": {
            "BROKER": "django_delayq.brokers.database.DatabaseBroker",
            "DATABASE": sqlite_database,
            "OPTIONS": {"unknown_keys": "allow"},
        }
    }
    for id, key, tag in (
        ("order:7:close", "order.close", "order:7"),
        ("order:7:remind", "order.remind", "order:7"),
        ("order:71:close", "order.close", "order:71"),
    ):
        send_delay_message(key, {"id": 7}, id=id, tag=tag, delay="1h")


def states() -> dict[str, str]:
    return {info.id: str(info.state) for info in list_delay_messages()}


@pytest.mark.parametrize(
    ("search", "chosen"),
    [
        (["--tag", "order:7"], {"order:7:close", "order:7:remind"}),
        (["--key", "order.close"], {"order:7:close", "order:71:close"}),
        (["--id-prefix", "order:7:"], {"order:7:close", "order:7:remind"}),
        (["--tag", "order:7", "--key", "order.close"], {"order:7:close"}),
    ],
)
def test_cancel_stops_what_the_search_finds_and_nothing_else(search: list[str], chosen: set[str]) -> None:
    assert delayq("cancel", *search, "--no-input") == f"cancelled {len(chosen)} of {len(chosen)}\n"
    assert {id for id, state in states().items() if state == "cancelled"} == chosen


def test_a_search_asks_with_the_count_and_no_leaves_everything(
    answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    answer("no\n")
    with pytest.raises(CommandError, match="Nothing was done"):
        delayq("run-now", "--tag", "order:7")
    assert "Run now 2 waiting messages?" in capsys.readouterr().out
    assert set(states().values()) == {"pending"}


def test_run_now_makes_messages_due(answer: Answer) -> None:
    answer("yes\n")
    assert delayq("run-now", "--tag", "order:7") == "made due 2 of 2\n"
    due_in = {info.id: info.due_at - info.sent_at for info in list_delay_messages()}
    assert {id for id, wait in due_in.items() if wait < timedelta(minutes=30)} == {"order:7:close", "order:7:remind"}


def test_reschedule_gives_the_named_time() -> None:
    delayq("reschedule", "order:7:close", "--at", "2100-01-02T03:04:05+00:00")
    delayq("reschedule", "--tag", "order:71", "--delay", "2h", "--no-input")
    due = {info.id: info.due_at for info in list_delay_messages()}
    assert due["order:7:close"].isoformat() == "2100-01-02T03:04:05+00:00"
    assert due["order:71:close"] > due["order:7:remind"], "two hours from now is later than one"


def test_reschedule_of_what_does_not_wait_says_where_it_is() -> None:
    delayq("cancel", "order:7:close")
    with pytest.raises(CommandError, match=r"Not rescheduled: 'order:7:close' \(it is cancelled\)"):
        delayq("reschedule", "order:7:close", "--delay", "1m")


def test_list_shows_messages_in_every_state_or_in_one() -> None:
    delayq("cancel", "order:7:close")
    listed = json.loads(delayq("list", "--tag", "order:7", "--json"))
    assert [(each["id"], each["state"], each["data"]) for each in listed] == [
        ("order:7:remind", "pending", {"id": 7}),
        ("order:7:close", "cancelled", {"id": 7}),
    ]
    assert "order:7:remind" not in (shown := delayq("list", "--state", "cancelled"))
    assert "order:7:close" in shown
    assert delayq("list", "--state", "failed").splitlines()[-1] == "No message was found."


def test_list_says_that_there_may_be_more() -> None:
    assert delayq("list", "-n", "2").splitlines()[-1].startswith("There may be more")


def test_run_now_of_what_is_nowhere_says_so() -> None:
    with pytest.raises(CommandError, match=r"^Not made due: 'nobody' \(no such message\)\.$"):
        delayq("run-now", "nobody")


@pytest.mark.parametrize("command", ["cancel", "run-now", "reschedule"])
@pytest.mark.parametrize("choice", [[], ["order:7:close", "--tag", "order:7"]], ids=["nothing", "both"])
def test_neither_or_both_kinds_of_choice_are_refused(command: str, choice: list[str]) -> None:
    due = ["--delay", "1m"] if command == "reschedule" else []
    with pytest.raises(CommandError, match="ids, or a search by --tag") as raised:
        delayq(command, *choice, *due)
    assert raised.value.returncode == 2
    assert set(states().values()) == {"pending"}


def test_a_search_without_a_store_changes_nothing_and_says_what_to_do(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match="A search takes a store"):
        delayq("cancel", "--tag", "order:7")


def test_a_message_that_was_cancelled_is_found_by_its_id() -> None:
    delayq("cancel", "order:7:close")
    info = get_delay_message("order:7:close")
    assert info is not None
    assert info.state is State.CANCELLED
