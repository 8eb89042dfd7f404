"""`check-data` also reads the data of messages that only a commit to come will put."""

from time import monotonic
from typing import Any

import pytest

from django_delayq import Batch, BatchDone, Message, Sequence, Step, delay_execute, send_delay_message
from django_delayq.api import sequences as api
from django_delayq.brokers.base import Claimed, ClaimRequest
from django_delayq.core import transitions
from django_delayq.monitor import data
from django_delayq.monitor.data import KeyData
from django_delayq.store import DatabaseBackend
from tests.worker.rig import PATIENCE_S

pytestmark = pytest.mark.usefixtures("registry", "broker")


@pytest.fixture(autouse=True)
def _few_a_page_and_no_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PAGE", 2)
    monkeypatch.setattr(api, "by_alias", {})


def found(key: str) -> KeyData:
    return data.check_data("default", examples=10).keys.get(key, KeyData(key))


def serve(key: str, took: Any) -> None:
    """Register a handler that no longer takes what was sent."""

    def take(message: Any) -> None: ...

    take.__annotations__["message"] = took
    delay_execute(key)(take)


def claim(broker: DatabaseBackend, key: str) -> Claimed:
    """Claim the one message of a key, which is due within a millisecond."""
    request, until = ClaimRequest("default", key, 1), monotonic() + PATIENCE_S
    while not (claimed := broker.queue.claim([request], lease_ms=60_000, worker="w").messages):
        assert monotonic() < until
    return claimed[0]


def test_each_step_to_come_is_read_by_its_handler(broker: DatabaseBackend) -> None:
    dunning = Sequence("dunning", [Step("mail", "1d"), Step("call"), Step("mail"), Step("call", queue="phone")])
    for number in range(3):
        dunning.start("secret", id=f"invoice:{number}")
    serve("mail", Message[str])
    serve("call", Message[int])
    assert (found("mail").checked, found("mail").failing) == (6, 0)
    call = found("call")
    assert (call.checked, call.failing) == (6, 6)
    assert [what for what, _ in call.examples] == [f"dunning:invoice:{n}@{step}" for n in range(3) for step in (2, 4)]
    assert {reason for _, reason in call.examples} == {"The data doesn't fit int: Expected `int`, got `str`"}
    assert data.check_data("default", queue="phone").sum("checked") == 3
    dunning.stop("invoice:0", "invoice:1")
    assert found("call").failing == 2


def test_of_a_sequence_whose_step_runs_only_what_still_comes_is_read(broker: DatabaseBackend) -> None:
    dunning = Sequence("dunning", [Step("mail"), Step("call"), Step("call")])
    dunning.start(1, id="a")
    first = claim(broker, "mail")
    dunning.stop("a")
    assert found("call").checked == 0
    dunning.start(1, id="a")
    serve("call", Message[str])
    assert (found("mail").checked, found("call").failing) == (2, 2)
    broker.queue.apply([transitions.finish(first)])
    assert all(broker.queue.apply([transitions.finish(claim(broker, "mail"))]))
    assert [what for what, _ in found("call").examples] == ["dunning:a@2", "dunning:a@3"]


def test_a_send_that_is_kept_until_the_run_ends_is_read(broker: DatabaseBackend) -> None:
    send_delay_message("sync", 1, id="a")
    claim(broker, "sync")
    send_delay_message("sync", "secret", id="a", on_conflict="replace", while_running="again")
    serve("sync", Message[int])
    sync = found("sync")
    assert (sync.checked, sync.failing) == (2, 1)
    assert sync.examples == [("a, again", "The data doesn't fit int: Expected `int`, got `str`")]


def test_what_follows_a_batch_is_read_as_a_whole() -> None:
    for given in (1, 2, "secret"):
        with Batch("done", data=given) as batch:
            batch.send("row", delay="1h")
    serve("done", Message[BatchDone])
    assert (found("done").checked, found("done").failing) == (3, 0)
    with Batch("other") as batch:
        batch.send("row", delay="1h")
    serve("other", Message[int])
    assert [what for what, _ in found("other").examples] == [batch.id]
