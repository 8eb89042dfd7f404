"""Sentry: an event for each attempt that failed, and the spans of its queue insights."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from pytest_django import Settings
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_delayq import Message, Retry, Send, Snooze, delay_execute, send_delay_message, send_delay_messages, tracing
from django_delayq.sentry import instrument
from django_delayq.testing import run_due
from tests.worker.rig import Rig, make_handler

STEPS: list[BaseException | None] = []
"""The exceptions that the attempts of `run` raise, one after another."""


class Kept(Transport):
    """A transport that sends nothing."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [item.payload.json for item in envelope.items if item.payload.json is not None]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") != "transaction"]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction"]


@pytest.fixture
def sentry() -> Iterator[Kept]:
    """Yield what Sentry is told, by its integrations that a site has anyway and that matter here."""
    kept = Kept()
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=kept,
        traces_sample_rate=1.0,
        default_integrations=False,
        auto_enabling_integrations=False,
        auto_session_tracking=False,
        integrations=[LoggingIntegration(), DedupeIntegration()],
        include_local_variables=False,
    )
    instrument()
    yield kept
    tracing.use(None)
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def site(registry: None, settings: Settings) -> None:
    """A site without a store that has a handler `run` on the queue `mail`, which does its `STEPS`."""
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.testing.VirtualTimeBroker", "STORE": None}}
    STEPS.clear()

    @delay_execute(key="run", queue="mail", backoff=1, max_attempts=4)
    def run(message: Message[Any]) -> None:
        sentry_sdk.add_breadcrumb(message=f"attempt {message.attempt}")
        if STEPS and (error := STEPS.pop(0)) is not None:
            raise error


@pytest.mark.usefixtures("site")
def test_each_attempt_that_failed_is_an_event_with_its_traceback(sentry: Kept) -> None:
    STEPS[:] = [ValueError("first"), Snooze(1), Retry(delay=1), ValueError("third"), ValueError("last")]
    send_delay_message("run", "hush", id="a")
    run_due("1h", errors="keep")
    assert [event["exception"]["values"][0]["value"] for event in sentry.errors] == ["first", "third", "last"]
    assert [event["contexts"]["delayq"]["attempt"] for event in sentry.errors] == [1, 3, 4]
    event = sentry.errors[1]
    assert event["tags"] == {"delayq.key": "run", "delayq.queue": "mail"}
    assert event["contexts"]["delayq"]["id"] == "a"
    assert event["exception"]["values"][0]["stacktrace"]["frames"][-1]["function"] == "run"
    assert [crumb.get("message") for crumb in event["breadcrumbs"]["values"]] == ["attempt 3"]
    assert "hush" not in str(sentry.items)


@pytest.mark.usefixtures("site")
def test_a_site_that_has_texts_scrubbed_sends_no_exception(sentry: Kept, settings: Settings) -> None:
    settings.DELAYQ = {"default": settings.DELAYQ["default"] | {"OPTIONS": {"scrub": "tests.scrubs.without_cards"}}}
    STEPS[:] = [ValueError("card 4111111111111111")]
    send_delay_message("run")
    run_due("1s", errors="keep")
    event = sentry.errors[0]
    assert event["message"] == "ValueError: card (card)"
    assert "in run\n" in event["contexts"]["traceback"]["text"]
    assert "4111111111" not in str(sentry.items)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_scrubbed_failure_for_good_is_no_second_event_by_its_log_line(
    sentry: Kept, settings: Settings, is_async: bool
) -> None:
    settings.DELAYQ = {"default": settings.DELAYQ["default"] | {"OPTIONS": {"scrub": "tests.scrubs.without_cards"}}}

    def run(message: Message[Any]) -> None:
        raise ValueError(message.id)

    async def arun(message: Message[Any]) -> None:
        raise ValueError(message.id)

    rig = Rig()
    rig.send("a", "b")
    rig.drain(make_handler(arun if is_async else run, max_attempts=1))
    assert sorted(event["message"] for event in sentry.errors) == ["ValueError: a", "ValueError: b"]


@pytest.mark.usefixtures("site")
def test_sends_and_attempts_have_the_spans_of_queue_insights(sentry: Kept) -> None:
    with sentry_sdk.start_transaction(name="request"):
        send_delay_message("run", "data", id="a")
        send_delay_messages([Send("run"), Send("run")])
    run_due()
    request, *attempts = sentry.transactions
    sent, batch = request["spans"]
    assert (sent["op"], sent["description"]) == ("queue.publish", "run")
    assert (
        sent["data"].items()
        >= {
            "messaging.system": "delayq",
            "messaging.destination.name": "mail",
            "messaging.message.id": "a",
            "messaging.message.body.size": 6,
        }.items()
    )
    assert batch["data"]["messaging.batch.message_count"] == 2
    assert len(attempts) == 3
    (attempt,) = [each for each in attempts if each["contexts"]["delayq"]["id"] == "a"]
    assert attempt["contexts"]["trace"]["parent_span_id"] == sent["span_id"]
    assert attempt["contexts"]["trace"]["trace_id"] == request["contexts"]["trace"]["trace_id"]
    (ran,) = attempt["spans"]
    assert (ran["op"], ran["description"], ran["tags"]["status"]) == ("queue.process", "run", "ok")
    assert (
        ran["data"].items()
        >= {
            "messaging.system": "delayq",
            "messaging.destination.name": "mail",
            "messaging.message.id": "a",
            "messaging.message.retry.count": 0,
        }.items()
    )
    assert ran["data"]["messaging.message.receive.latency"] >= 0


@pytest.mark.parametrize("is_async", [False, True])
def test_in_a_worker_each_attempt_has_a_scope_of_its_own(sentry: Kept, is_async: bool) -> None:
    def run(message: Message[Any]) -> None:
        sentry_sdk.set_tag(f"seen.{message.id}", "yes")
        raise ValueError(message.id)

    async def arun(message: Message[Any]) -> None:
        sentry_sdk.set_tag(f"seen.{message.id}", "yes")
        await asyncio.sleep(0)
        raise ValueError(message.id)

    rig = Rig()
    rig.send("a", "b", "c")
    rig.drain(make_handler(arun if is_async else run, max_attempts=1, concurrency=1))  # one after another
    assert len(sentry.errors) == 3
    for event in sentry.errors:
        id = event["exception"]["values"][0]["value"]
        assert [tag for tag in event["tags"] if tag.startswith("seen.")] == [f"seen.{id}"]
        assert event["contexts"]["delayq"]["id"] == id


def test_where_it_is_not_installed_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['sentry_sdk'] = None; import django_delayq.sentry"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("pip install 'django-delayq[sentry]'")
