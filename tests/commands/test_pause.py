"""`delayq pause` and `resume`, and where a pause is shown."""

import pytest
from django.core.management.base import CommandError

from django_delayq.brokers.base import Backend
from tests.commands.support import Clock, bury, claim, delayq, delayq_json, send, serve

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("which", "queue", "key", "names"),
    [
        (["mail"], "mail", None, "queue 'mail'"),
        (["--key", "order.close"], None, "order.close", "key 'order.close'"),
        (["mail", "--key", "order.close"], "mail", "order.close", "key 'order.close' in queue 'mail'"),
    ],
)
def test_a_queue_a_key_or_both_are_paused_and_resumed(
    broker: Backend, which: list[str], queue: str | None, key: str | None, names: str
) -> None:
    assert delayq("pause", *which, "--reason", "no SMS") == (
        f"paused {names} until it is resumed; nothing waits there\n"
    )
    (pause,) = broker.presence.pauses()
    assert (pause.queue, pause.key, pause.reason, pause.until_ms) == (queue, key, "no SMS", None)
    assert delayq("resume", *which) == f"resumed {names}\n"
    assert broker.presence.pauses() == []
    assert delayq("resume", *which) == f"{names} was not paused\n"


def test_a_pause_says_how_much_waits_there(broker: Backend) -> None:
    send(broker, "a", "b")
    send(broker, "c", delay_ms=HOUR)
    send(broker, "d", key="order.remind")
    said = delayq("pause", "default", "--key", "order.close", "--reason", "x")
    assert said.endswith("; 1 pending and 2 ready wait there\n")


def test_a_pause_again_takes_the_new_reason_and_end(broker: Backend) -> None:
    delayq("pause", "mail", "--reason", "old", "--for", "30m")
    delayq("pause", "mail", "--reason", "new")
    (pause,) = broker.presence.pauses()
    assert (pause.reason, pause.until_ms) == ("new", None)


def test_a_length_counts_by_the_clock_that_decides(clocked_broker: Backend, clock: Clock) -> None:
    said = delayq("pause", "mail", "--reason", "x", "--for", "1h30m")
    assert said.startswith("paused queue 'mail' until 2027-01-15T09:30:00.000Z (in 1h30m);")
    assert clocked_broker.presence.pauses()[0].until_ms == clock.now_ms + 90 * 60_000


@pytest.mark.parametrize("when", ["2027-01-15T10:00+01:00", "2027-01-15T09:00Z", "2027-01-15T09:00:00.000+00:00"])
def test_an_instant_has_an_offset(clocked_broker: Backend, clock: Clock, when: str) -> None:
    delayq("pause", "mail", "--reason", "x", "--until", when)
    assert clocked_broker.presence.pauses()[0].until_ms == clock.now_ms + HOUR


def test_an_instant_that_is_past_by_the_clock_that_decides_is_refused(clocked_broker: Backend) -> None:
    with pytest.raises(CommandError, match=r"Not paused: 2027-01-15T08:00:00.000Z \(0ms ago\) is past") as raised:
        delayq("pause", "mail", "--reason", "x", "--until", "2027-01-15T08:00Z")
    assert raised.value.returncode == 1
    assert clocked_broker.presence.pauses() == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["pause", "--reason", "x"], "Say which: QUEUE, or --key KEY"),
        (["resume"], "Say which: QUEUE, or --key KEY"),
        (["pause", "mail"], "required: --reason"),
        (["pause", "mail", "--reason", ""], "reason='' is empty"),
        (["pause", "mail", "--reason", "a\nb"], "leave out control characters"),
        (["pause", "a:b", "--reason", "x"], "queue='a:b' contains a colon"),
        (["pause", "--key", "", "--reason", "x"], "key='' is empty"),
        (["pause", "mail", "--reason", "x", "--for", "soon"], "--for='soon' is no length of time"),
        (["pause", "mail", "--reason", "x", "--for", "0"], "--for='0' is no length of time"),
        (["pause", "mail", "--reason", "x", "--for", "0s"], "--for='0s' is too short; give 1ms or more"),
        (["pause", "mail", "--reason", "x", "--until", "tomorrow"], "--until='tomorrow' is no instant"),
        (["pause", "mail", "--reason", "x", "--until", "2027-01-15T09:00"], "with its offset from UTC"),
        (["pause", "mail", "--reason", "x", "--until", "9999-12-31T00:00Z"], "over 100 years from now"),
        (["pause", "mail", "--reason", "x", "--until", "2027-01-15T09:00Z", "--for", "1m"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_named_and_pauses_nothing(clocked_broker: Backend, wrong: list[str], said: str) -> None:
    with pytest.raises(CommandError) as raised:
        delayq(*wrong)
    assert said in str(raised.value)
    assert clocked_broker.presence.pauses() == []


def test_a_resume_names_what_still_holds_back_some_of_it(broker: Backend) -> None:
    for which in (["mail"], ["--key", "order.close"], ["mail", "--key", "order.remind"], ["text"]):
        delayq("pause", *which, "--reason", "no SMS")
    assert delayq("resume", "mail").splitlines() == [
        "resumed queue 'mail'",
        "still paused: key 'order.close' (no SMS)",
        "still paused: key 'order.remind' in queue 'mail' (no SMS)",
    ]
    assert delayq("resume", "text", "--key", "order.close").splitlines() == [
        "key 'order.close' in queue 'text' was not paused",
        "still paused: key 'order.close' (no SMS)",
        "still paused: queue 'text' (no SMS)",
    ]


def test_status_shows_what_is_paused_with_reason_and_end(clocked_broker: Backend, clock: Clock) -> None:
    send(clocked_broker, "a")
    send(clocked_broker, "b", queue="mail")
    serve(clocked_broker, "order.close")
    delayq("pause", "mail", "--reason", "no SMS", "--for", "1h")
    delayq("pause", "--key", "order.remind", "--reason", "wrong text")
    shown = delayq("status")
    assert "queue 'mail'" in shown
    assert "until 2027-01-15T09:00:00.000Z (in 1h)  no SMS" in shown
    assert "until it is resumed" in shown
    assert "parked, paused" in shown
    seen = delayq_json("status")
    assert [each["paused"] for each in seen["waiting"]] == [False, True]
    assert seen["pauses"] == [
        {
            **{"queue": None, "key": "order.remind", "reason": "wrong text"},
            **{"paused_at": "2027-01-15T08:00:00.000Z", "paused_ms": clock.now_ms},
            **{"until_at": None, "until_ms": None},
        },
        {
            **{"queue": "mail", "key": None, "reason": "no SMS"},
            **{"paused_at": "2027-01-15T08:00:00.000Z", "paused_ms": clock.now_ms},
            **{"until_at": "2027-01-15T09:00:00.000Z", "until_ms": clock.now_ms + HOUR},
        },
    ]
    clock.now_ms += HOUR
    assert [each["paused"] for each in delayq_json("status")["waiting"]] == [False, False]


def test_status_says_nothing_of_pauses_where_there_are_none(broker: Backend) -> None:
    assert "PAUSED" not in delayq("status")
    assert delayq_json("status")["pauses"] == []


def test_explain_says_that_a_message_waits_for_the_end_of_pauses(clocked_broker: Backend) -> None:
    serve(clocked_broker, "order.close")
    send(clocked_broker, "a")
    send(clocked_broker, "other", key="order.remind")
    delayq("pause", "--key", "order.close", "--reason", "wrong text", "--for", "1h")
    shown = delayq("explain", "a")
    assert "a: ready, paused\n" in shown
    assert "key 'order.close' is paused until 2027-01-15T09:00:00.000Z (in 1h): wrong text\n" in shown
    assert (
        "next: It does not start while key 'order.close' is paused. "
        "After that: The first worker with a free slot runs it.\n"
    ) in shown
    delayq("pause", "default", "--reason", "no SMS")
    seen = delayq_json("explain", "a")
    assert "while key 'order.close' and queue 'default' are paused." in seen["happens_next"]
    assert [pause["reason"] for pause in seen["pauses"]] == ["wrong text", "no SMS"]
    assert [pause["reason"] for pause in delayq_json("explain", "other")["pauses"]] == ["no SMS"]


def test_explain_says_of_a_running_message_that_it_ends_and_does_not_start_again(broker: Backend) -> None:
    send(broker, "a")
    claim(broker)
    delayq("pause", "default", "--reason", "x")
    shown = delayq("explain", "a")
    assert "a: running\n" in shown
    assert "It ends as its handler does" in shown
    assert "It does not start again while queue 'default' is paused." in shown


def test_explain_says_no_more_of_a_buried_message_than_before(broker: Backend) -> None:
    bury(broker, "a")
    delayq("pause", "default", "--reason", "x")
    assert delayq_json("explain", "a")["happens_next"].startswith("Nothing until it is rescued")
