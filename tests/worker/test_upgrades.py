"""Data of an older version is upgraded before the handler gets it; data of a later one waits for later code."""

import dataclasses
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_delayq import DataMismatch, Message, State, delay_execute
from django_delayq.api.handlers import Handler
from django_delayq.api.send import prepare
from django_delayq.conf import get_alias
from django_delayq.core.limits import Limits
from django_delayq.core.message import Send
from tests.worker.rig import Rig, make_handler

pytestmark = pytest.mark.usefixtures("registry")


@dataclasses.dataclass
class Order:
    number: int
    currency: str


def with_number(data: Any) -> Any:
    return {"number": data}


def with_currency(data: Any) -> Any:
    return {**data, "currency": "EUR"}


def upgraded_twice(func: Any = None, **options: Any) -> Handler[Any, Any]:
    def close(message: Message[Order]) -> Order:
        return message.data

    handler: Handler[Any, Any] = make_handler(func or close, **options)
    handler.upgrade(from_version=1)(with_number)
    handler.upgrade(from_version=2)(with_currency)
    return handler


def sent_version(handler: Handler[Any, Any], **when: Any) -> int | None:
    return prepare(Send(handler.key, {"number": 1, "currency": "EUR"}, **when), get_alias("default")).header.version


def test_a_send_carries_the_version_only_where_it_is_not_one() -> None:
    @delay_execute("order.close")
    def close(message: Message[Any]) -> None: ...

    assert sent_version(close) is None
    assert sent_version(close, tag="t") is None
    close.upgrade(from_version=1)(with_number)  # a header that was made before must not be used again
    assert (close.version, sent_version(close), sent_version(close, tag="t")) == (2, 2, 2)


@pytest.mark.parametrize(
    ("version", "data"), [(1, 17), (None, 17), (2, {"number": 17}), (3, {"number": 17, "currency": "EUR"})]
)
def test_a_worker_upgrades_what_is_older_and_a_handler_gets_its_type(rig: Rig, version: int | None, data: Any) -> None:
    got: list[Any] = []

    def close(message: Message[Order]) -> None:
        got.append(message.data)

    rig.send("a", data=data, version=version)
    rig.drain(upgraded_twice(close))
    assert got == [Order(17, "EUR")]


def test_an_async_handler_gets_upgraded_data_too(rig: Rig) -> None:
    got: list[Any] = []

    async def close(message: Message[Order]) -> None:
        got.append(message.data)

    rig.send("a", data=17)
    rig.drain(upgraded_twice(close))
    assert got == [Order(17, "EUR")]


def test_a_concurrency_key_is_filled_in_from_upgraded_data(rig: Rig) -> None:
    got: list[Any] = []
    limits = Limits(max_concurrency=1, concurrency_key="order:{number}")
    rig.send("a", data=17)
    rig.drain(upgraded_twice(lambda message: got.append(message), limits=limits))
    assert len(got) == 1


def refuses(data: Any) -> Any:
    raise KeyError("a secret of the data")


def leaves(data: Any) -> Any:
    raise SystemExit("a secret of the data")


def forgets(data: Any) -> Any:
    data["currency"] = "EUR"


def spoils(data: Any) -> Any:
    return {"number": {1, 2}}


def misnames(data: Any) -> Any:
    return {"no": 1}


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (refuses, r"The upgrade tests\.worker\.test_upgrades\.refuses \(from version 1\) raised KeyError\."),
        (leaves, r"The upgrade tests\.worker\.test_upgrades\.leaves \(from version 1\) raised SystemExit\."),
        (
            forgets,
            r"The upgrade tests\.worker\.test_upgrades\.forgets \(from version 1\) returned None, not the new data\.",
        ),
        (spoils, r"The upgraded data: data\.number is of type set: .*"),
        (misnames, r"The data doesn't fit Order: .*number.*"),
    ],
)
def test_a_failed_upgrade_buries_with_a_reason_that_quotes_no_data(rig: Rig, func: Any, why: str) -> None:
    def close(message: Message[Order]) -> None: ...

    handler = make_handler(close)
    handler.upgrade(from_version=1)(func)
    rig.send("a", data={})
    rig.drain(handler)
    info = rig.see("a")
    assert info.state is State.FAILED
    with pytest.raises(DataMismatch, match=f"^{why}$"):
        handler.data_of(b"{}", None)
    assert info.error.startswith("DataMismatch: The ")
    assert "secret" not in info.error + info.detail


def test_data_older_than_any_upgrade_is_buried(rig: Rig) -> None:
    handler = make_handler(lambda message: None)
    handler.upgrade(from_version=2)(with_currency)
    rig.send("a", data={})
    rig.drain(handler)
    assert rig.see("a").error == "DataMismatch: The handler has no upgrade from version 1 of its data."


def test_data_of_a_later_version_waits_for_later_code_and_counts_no_attempt(rig: Rig) -> None:
    got: list[int] = []
    rig.send("a", data=17, version=2)
    rig.drain(make_handler(lambda message: got.append(message.attempt)))
    info = rig.see("a")
    assert (got, info.state, info.failures, info.crashes) == ([], State.PENDING, 0, 0)
    later = make_handler(lambda message: got.append(message.attempt))
    later.upgrade(from_version=1)(with_number)
    rig.broker.advance(60_000)
    rig.drain(later)
    assert got == [1]


def test_data_of_a_later_version_is_warned_of(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("a", data=17, version=2)
    rig.drain(make_handler(lambda message: None))
    (line,) = [record.getMessage() for record in caplog.records if "later" in record.getMessage()]
    assert line == (
        "Message 'a' (k) is left to others for 1m: its data is of version 2, and this code knows no later one than 1"
    )


def test_a_unit_test_runs_a_handler_with_old_data() -> None:
    handler = upgraded_twice()
    assert handler.run(handler.from_version(1, 17)) == Order(17, "EUR")
    with pytest.raises(DataMismatch, match="its data is of version 9"):
        handler.from_version(9, 17)
    with pytest.raises(TypeError, match="version='1' is str; give a whole number"):
        handler.from_version("1", 17)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="version=0 is too small; give 1 or more"):
        handler.from_version(0, 17)


def test_an_upgrade_stays_a_plain_function() -> None:
    handler = make_handler(lambda message: None)
    assert handler.upgrade(from_version=1)(with_number) is with_number


def no_argument() -> None: ...


async def waits(data: Any) -> Any: ...


@pytest.mark.parametrize(
    ("version", "func", "why"),
    [
        (0, with_number, "from_version=0"),
        ("1", with_number, "from_version='1'"),
        (1, no_argument, r"it takes \(\) -> None; it must take one positional argument: \(data\)\."),
        (1, waits, "waits is async; an upgrade is a plain function"),
        (2, with_number, "from_version=2 has tests.worker.test_upgrades.with_currency already"),
    ],
)
def test_a_wrong_upgrade_is_refused(version: Any, func: Any, why: str) -> None:
    handler = make_handler(lambda message: None)
    handler.upgrade(from_version=2)(with_currency)
    with pytest.raises(ImproperlyConfigured, match=why):
        handler.upgrade(from_version=version)(func)


def test_a_version_without_an_upgrade_is_a_check_error() -> None:
    @delay_execute("order.close")
    def close(message: Message[Any]) -> None: ...

    close.upgrade(from_version=2)(with_number)
    assert [message.id for message in run_checks(tags=["delayq"])] == []  # those of version 1 are gone by now
    close.upgrade(from_version=4)(with_number)
    (message,) = run_checks(tags=["delayq"])
    assert message.id == "delayq.E021"
    assert "upgrades data from version 2, but not from 3" in message.msg
