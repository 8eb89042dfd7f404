"""OPTIONS["scrub"]: what a site removes from errors is neither stored nor logged, in no process."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_delayq import Message
from django_delayq.core.message import State
from django_delayq.support.logging import logger
from tests import scrubs
from tests.worker.rig import Rig, make_handler

CARD = "4111111111111111"


def scrub_with(settings: Settings, scrub: object) -> None:
    default: dict[str, Any] = settings.DELAYQ["default"]
    settings.DELAYQ = {"default": default | {"OPTIONS": default.get("OPTIONS", {}) | {"scrub": scrub}}}


@pytest.mark.parametrize(
    ("scrub", "shown"),
    [
        ("tests.scrubs.without_cards", "ValueError: (card) is declined"),
        (scrubs.without_cards, "ValueError: (card) is declined"),
        (scrubs.failing, "ValueError: (left out, because OPTIONS['scrub'] raised KeyError)"),
        (scrubs.no_text, "ValueError: (left out, because OPTIONS['scrub'] raised TypeError)"),
        ("tests.scrubs.missing", "ValueError: (left out, because OPTIONS['scrub'] raised ImportError)"),
    ],
)
def test_an_error_is_scrubbed_before_it_is_stored_or_logged(
    rig: Rig, settings: Settings, caplog: pytest.LogCaptureFixture, scrub: object, shown: str
) -> None:
    def handler(message: Message[Any]) -> None:
        raise ValueError(f"{message.data} is declined")

    scrub_with(settings, scrub)
    rig.send("a", data=CARD)
    rig.send("b", data=CARD)
    with caplog.at_level(logging.DEBUG, "django_delayq"):
        rig.drain(make_handler(handler, max_attempts=1))
    assert (rig.see("a").state, rig.see("a").error) == (State.FAILED, shown)
    assert rig.see("b").state == State.FAILED  # the worker went on
    (failed, _) = rig.broker.queue.failed(10)
    assert CARD not in failed.detail
    assert "Traceback" in failed.detail or "left out" in failed.detail
    assert CARD not in caplog.text
    assert all(record.exc_info is None for record in caplog.records)  # a site's tools would send the exception itself


def test_every_process_that_sets_django_up_scrubs(tmp_path: Path) -> None:
    script = f"""if True:
        import django; django.setup()
        from django_delayq.support.logging import logger
        try: raise ValueError("{CARD}")
        except ValueError: logger.exception("It failed.")"""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DELAYQ_TEST": json.dumps({"OPTIONS": {"scrub": "tests.scrubs.without_cards"}}),
    }
    told = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True).stderr
    assert "ValueError: (card)" in told
    assert CARD not in told.replace(f'ValueError("{CARD}")', "")


def test_without_it_tools_get_the_exception(caplog: pytest.LogCaptureFixture) -> None:
    logger.error("It failed.", exc_info=ValueError("x"))
    (record,) = caplog.records
    assert record.exc_info is not None
