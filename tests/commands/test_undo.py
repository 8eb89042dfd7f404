"""`delayq undo` undoes what a command did with `--action`, and says in one line what it did, or why nothing."""

from collections.abc import Callable

import pytest
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq import get_delay_message, list_delay_messages, send_delay_message
from django_delayq.models import ActionRow
from django_delayq.support.audit import operator_of_process
from tests.commands.support import delayq

WHO = operator_of_process().who


@pytest.fixture(autouse=True)
def alone(sqlite_database: str, settings: Settings) -> None:
    """Three messages that wait, in the tables."""
    settings.DELAYQ = {
        "default": {
            "BROKER": "django_delayq.brokers.database.DatabaseBroker",
            "DATABASE": sqlite_database,
            "OPTIONS": {"unknown_keys": "allow"},
        }
    }
    for id in "abc":
        send_delay_message("order.close", id=id, tag="order:7", delay="1h")


def waiting() -> dict[str, object]:
    """Return when messages are due, by the ids of those that wait."""
    return {info.id: info.due_at for info in list_delay_messages() if info.state == "pending"}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["cancel", "--tag", "order:7"], "cancel"),
        (["cancel", "a", "b", "c", "--running"], "cancel"),
        (["reschedule", "--tag", "order:7", "--delay", "2h"], "reschedule"),
        (["run-now", "a", "b", "c"], "run_now"),
    ],
)
def test_what_a_command_did_is_undone(
    command: list[str],
    kind: str,
    sqlite_database: str,
    answer: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = waiting()
    answer("yes\nyes\n")
    delayq(*command, "--action", "ticket 7")
    assert waiting() != before
    row = ActionRow.objects.using(sqlite_database).get()
    assert (row.kind, row.by) == (kind, WHO)
    assert delayq("undo", "ticket 7", "--dry-run").startswith("would undo 3 messages,")
    assert waiting() != before
    assert delayq("undo", "ticket 7") == "undone 3 of 3\n"
    assert "Undo 'ticket 7' for 3 messages?" in capsys.readouterr().out
    assert waiting() == before
    row.refresh_from_db()
    assert row.undone_by == WHO


def test_what_was_sent_again_is_cancelled() -> None:
    delayq("cancel", "a", "b")
    delayq("send-again", "a", "b", "--action", "ticket 7")
    delayq("cancel", "b")
    told = delayq("undo", "ticket 7", "--no-input").splitlines()
    assert told == ["undone 1 of 2", "left 1: they have started, or were changed meanwhile"]
    info = get_delay_message("a")
    assert info is not None
    assert info.state == "cancelled"


@pytest.mark.parametrize("options", [["--no-input"], ["--dry-run"]])
def test_an_undo_of_nothing_fails_and_says_why(options: list[str]) -> None:
    with pytest.raises(CommandError, match="Nothing is known of an action 'ticket 7'") as refused:
        delayq("undo", "ticket 7", *options)
    assert refused.value.returncode == 1
    delayq("cancel", "a", "--action", "ticket 7")
    delayq("undo", "ticket 7", "--no-input")
    with pytest.raises(CommandError, match="Nothing of the action 'ticket 7' is left to undo"):
        delayq("undo", "ticket 7", *options)
    with pytest.raises(CommandError, match="The action 'ticket 7' was undone: give this one a name of its own"):
        delayq("cancel", "b", "--action", "ticket 7")
    assert set(waiting()) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "command",
    [
        ["undo", "x", "--no-input"],
        ["cancel", "a", "--action", "x"],
        ["reschedule", "a", "--delay", "1h", "--action", "x"],
        ["run-now", "a", "--action", "x"],
    ],
)
def test_without_a_store_it_is_refused_as_a_wrong_command_line(command: list[str], settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match="store") as refused:
        delayq(*command)
    assert refused.value.returncode == 2
