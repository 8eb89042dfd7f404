"""`delayq check-data` reads what waits with the code of this process, and changes nothing."""

from typing import Any

import pytest
from django.core.management.base import CommandError

from django_delayq import Every, Message, delay_execute, schedule_delay_message
from django_delayq.brokers.base import Backend
from django_delayq.monitor import data
from tests.commands.support import bury, claim, delayq, delayq_json, send

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture
def readable(broker: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Each broker that can be read page by page, with pages of two."""
    if broker.alias.broker_name == "MemoryBroker":
        pytest.skip("it is in one process")
    monkeypatch.setattr(data, "PAGE", 2)
    return broker


def close(message: Message[int]) -> None: ...


def checked(*arguments: str) -> Any:
    """What `--json` says, whatever the exit code."""
    try:
        return delayq_json("check-data", *arguments)
    except CommandError as error:
        pytest.fail(f"exit 1: {error}")


def test_all_that_would_run_is_well(readable: Backend) -> None:
    delay_execute("order.close")(close)
    send(readable, *map(str, range(5)), body=b"17", delay_ms=60_000)
    assert checked() == {
        **{"alias": "default", "ok": True, "complete": True, "checked": 5, "failing": 0, "later": 0},
        "without_handler": 0,
        "keys": [{"key": "order.close", "checked": 5, "failing": 0, "later": 0, "without_handler": 0, "examples": []}],
    }
    assert delayq("check-data") == "order.close: of 5, 0 would fail\nchecked 5 messages\n"


def test_what_would_fail_is_named_without_its_data_and_exits_with_one(
    readable: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = delay_execute("order.close")(close)
    handler.upgrade(from_version=1)(lambda data: data["number"])
    send(readable, "well", body=b'{"number":1}', delay_ms=60_000)
    send(readable, "new", body=b"17", version=2, delay_ms=60_000)
    send(readable, "later", body=b"17", version=3, delay_ms=60_000)
    send(readable, *(f"bad{n}" for n in range(6)), body=b'{"secret":1}', delay_ms=60_000)
    send(readable, "typed", body=b'"secret"', version=2)
    send(readable, "other", key="nobody")
    with pytest.raises(CommandError, match=r"check-data: 7 would fail, and 1 would wait for later code") as error:
        delayq("check-data", "--examples", "10")
    assert error.value.returncode == 1


def test_examples_are_few_and_say_why(readable: Backend) -> None:
    delay_execute("order.close")(close)
    send(readable, *(f"bad{n}" for n in range(6)), body=b'"secret"', delay_ms=60_000)
    result = data.check_data("default", examples=2)
    (found,) = result.keys.values()
    assert (found.checked, found.failing, len(found.examples)) == (6, 6, 2)
    assert {reason for _, reason in found.examples} == {"The data doesn't fit int: Expected `int`, got `str`"}


def test_a_queue_a_key_and_a_limit_leave_out_the_rest(readable: Backend) -> None:
    send(readable, "a", "b", "c", delay_ms=60_000)
    send(readable, "d", queue="mail", key="order.remind", delay_ms=60_000)
    assert checked("mail")["checked"] == 1
    assert [each["key"] for each in checked("--key", "order.close")["keys"]] == ["order.close"]
    assert checked("mail", "--key", "order.close")["checked"] == 0
    limited = checked("--limit", "2")
    assert (limited["checked"], limited["complete"]) == (2, False)
    assert checked("--limit", "4")["complete"] is True
    assert checked()["without_handler"] == 4


def test_a_key_that_nobody_has_is_refused_because_a_deploy_must_not_go_on_for_a_typing_error(
    readable: Backend, registry: None
) -> None:
    @delay_execute("order.close")
    def close(message: Message[Any]) -> None: ...

    with pytest.raises(CommandError, match=r"key='order.clsoe' has no handler .* did you mean 'order.close'"):
        delayq("check-data", "--key", "order.clsoe")
    assert checked("--key", "order.close")["checked"] == 0


def test_failed_messages_are_checked_if_asked_for(readable: Backend) -> None:
    bury(readable, "a", "b", "c")
    assert checked()["checked"] == 0
    assert checked("--failed")["checked"] == 3


def test_it_changes_nothing(readable: Backend) -> None:
    send(readable, "a", "b")
    checked()
    assert {claimed.id for claimed in claim(readable, 2)} == {"a", "b"}


def test_the_data_of_a_schedule_is_checked_too(readable: Backend) -> None:
    if readable.store is None:
        pytest.skip("schedules need a store")
    handler = delay_execute("order.close")(close)
    schedule_delay_message("order.close", 17, name="nightly", every=Every(hours=1))
    assert checked()["checked"] == 2  # it, and its next occurrence
    handler.upgrade(from_version=1)(lambda data: f"{data}")
    found = data.check_data("default").keys["order.close"]
    assert sorted(what for what, _ in found.examples)[-1] == "schedule nightly"
    assert found.failing == 2


def test_a_broker_that_can_not_be_read_page_by_page_says_so(settings: Any) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match="can't be read page by page"):
        delayq("check-data")
