"""`delayq purge` asks, then removes what was chosen and nothing else."""

from collections.abc import Callable

import pytest
from django.core.management.base import CommandError

from django_delayq.brokers.base import BATCH, Backend
from django_delayq.core.message import State
from tests.commands.support import Clock, bury, claim, delayq, send

Answer = Callable[[str], None]


def left(broker: Backend) -> set[str]:
    """Return what waits or is buried."""
    queues = {each.queue for each in broker.queue.counts().waiting}
    waiting = {info.id for queue in queues for info in broker.queue.peek(queue, BATCH)}
    return waiting | {info.id for info in broker.queue.failed(BATCH)}


def test_named_messages_go_after_a_yes(broker: Backend, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    bury(broker, "dead")
    send(broker, "a", "b")
    answer("yes\n")
    assert delayq("purge", "a", "dead") == "purged 2 of 2\n"
    assert "Purge 2 messages for good?" in capsys.readouterr().out
    assert left(broker) == {"b"}
    assert broker.queue.counts().totals["purged"] == 2


def test_a_running_message_is_not_purged(broker: Backend) -> None:
    send(broker, "a")
    claim(broker)
    with pytest.raises(CommandError, match=r"Not purged: 'a' \(it is running\)"):
        delayq("purge", "a", "--no-input")


@pytest.mark.parametrize("choice", [["a"], ["--queue", "default"], ["--key", "order.close"], ["--errors"]])
@pytest.mark.parametrize("typed", ["no\n", ""])
def test_without_a_yes_nothing_goes(broker: Backend, answer: Answer, choice: list[str], typed: str) -> None:
    bury(broker, "dead")
    send(broker, "a")
    answer(typed)
    with pytest.raises(CommandError):
        delayq("purge", *choice)
    assert left(broker) == {"a", "dead"}


@pytest.mark.parametrize(
    ("choice", "stays"),
    [
        (["--queue", "default"], {"mail", "dead"}),
        (["--key", "order.close"], {"other", "dead"}),
        (["--queue", "default", "--key", "order.close"], {"other", "mail", "dead"}),
        (["--errors"], {"close", "other", "mail"}),
    ],
)
def test_only_what_was_chosen_goes(broker: Backend, choice: list[str], stays: set[str]) -> None:
    bury(broker, "dead")
    send(broker, "close", delay_ms=60_000)
    send(broker, "other", key="order.remind")
    send(broker, "mail", queue="mail")
    delayq("purge", *choice, "--no-input")
    assert left(broker) == stays


def test_the_question_has_the_count(broker: Backend, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    send(broker, "a", "b")
    send(broker, "c", delay_ms=60_000)
    answer("yes\n")
    assert delayq("purge", "--queue", "default") == "purged 3\n"
    assert "Purge 3 waiting messages" in capsys.readouterr().out


def test_a_queue_of_more_than_one_look_shows_is_emptied(broker: Backend) -> None:
    send(broker, *(f"m{number}" for number in range(2 * BATCH + 1)))
    assert delayq("purge", "--queue", "default", "--no-input") == f"purged {2 * BATCH + 1}\n"


def test_what_is_sent_after_the_question_stays(
    clocked_broker: Backend, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_late(question: str) -> str:
        clock.now_ms += 1
        send(clocked_broker, "new")
        return "yes"

    send(clocked_broker, "old")
    monkeypatch.setattr("builtins.input", answer_late)
    assert delayq("purge", "--queue", "default").splitlines()[0] == "purged 1"
    assert left(clocked_broker) == {"new"}


def test_a_key_behind_many_messages_of_another_is_reached(broker: Backend) -> None:
    send(broker, *(f"m{number}" for number in range(BATCH)), key="order.remind")
    send(broker, "behind", delay_ms=60_000)
    assert delayq("purge", "--key", "order.close", "--no-input") == "purged 1\n"
    assert broker.queue.get("behind") is None


def test_purging_errors_spares_a_message_that_waits_again_under_the_same_id(broker: Backend) -> None:
    bury(broker, "a", "b")
    send(broker, "a", delay_ms=60_000)
    assert delayq("purge", "--errors", "--no-input") == "purged 2 of 2\n"
    info = broker.queue.get("a")
    assert info is not None
    assert info.state is State.PENDING


@pytest.mark.parametrize("args", [[], ["a", "--errors"], ["--errors", "--queue", "q"], ["a", "--key", "k"]])
def test_purge_takes_exactly_one_choice(args: list[str]) -> None:
    with pytest.raises(CommandError, match="Say what to purge") as raised:
        delayq("purge", *args)
    assert raised.value.returncode == 2
