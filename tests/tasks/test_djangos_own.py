"""Django's own tests of its tasks (tests/tasks in its source), on our backend.

They are not in Django's wheel: DJANGO_SOURCE names an unpacked source of the version that is installed.
"""

import importlib
import os
import sys
import unittest
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import SimpleTestCase, override_settings

from django_delayq import testing
from django_delayq.django_tasks import AnyResult, AnyTask
from django_delayq.models import FinishMessage, ReadyMessage
from django_delayq.tasks import DelayqBackend

SOURCE = os.environ.get("DJANGO_SOURCE")
pytestmark = pytest.mark.skipif(
    not SOURCE or django.VERSION < (6, 0), reason="DJANGO_SOURCE names no source of Django 6.0 or newer"
)

LEFT_OUT = {
    "asks for the class of Django's backend": {
        "DummyBackendTestCase.test_using_correct_backend",
        "ImmediateBackendTestCase.test_using_correct_backend",
        "TaskTestCase.test_get_backend",
        "TaskTestCase.test_using_correct_backend",
    },
    "changes the results in the memory of Django's backend": {
        "DummyBackendTestCase.test_refresh_result",
        "DummyBackendTestCase.test_refresh_result_async",
    },
    "a backend that keeps no results": {
        "ImmediateBackendTestCase.test_cannot_get_result",
        "ImmediateBackendTestCase.test_cannot_refresh_result",
        "ImmediateBackendTestCase.test_cannot_pass_run_after",
    },
    "a worker outlives a KeyboardInterrupt of a task": {
        "ImmediateBackendTestCase.test_throws_keyboard_interrupt",
    },
}
"""The tests that don't hold for this backend, by the reason."""


class Recording(DelayqBackend):
    """Our backend, with what Django's tests use of the dummy one."""

    def clear(self) -> None:
        ReadyMessage.objects.all().delete()
        FinishMessage.objects.all().delete()

    @property
    def results(self) -> list[AnyResult]:
        ids = ReadyMessage.objects.order_by("pk").values_list("message_id", flat=True)
        return [self.get_result(id) for id in ids]


class AtOnce(DelayqBackend):
    """Our backend, with a worker that runs each task at once."""

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = super().enqueue(task, args, kwargs)
        testing.run_due(errors="keep")
        result.refresh()
        return result

    async def aenqueue(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = await super().aenqueue(task, args, kwargs)
        await testing.arun_due(errors="keep")
        await result.arefresh()
        return result


OVERRIDDEN = "_overridden_settings"
"""The attribute in which Django keeps the settings of a class of tests."""
STANDS_FOR = {
    "django.tasks.backends.dummy.DummyBackend": {"BACKEND": f"{__name__}.Recording"},
    "django.tasks.backends.immediate.ImmediateBackend": {
        "BACKEND": f"{__name__}.AtOnce",
        "OPTIONS": {"max_attempts": 1},
    },
}


def cases() -> Iterator[type[SimpleTestCase]]:
    """The classes of Django's tests.

    They run in no transaction, because some of them read in one thread what they have enqueued in another.
    """
    sys.path.append(str(Path(SOURCE or "") / "tests"))
    for name in ("test_tasks", "test_dummy_backend", "test_immediate_backend"):
        module = importlib.import_module(f"tasks.{name}")
        for case in vars(module).values():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
                yield type(case.__name__, (case,), {"databases": {"default"}, "available_apps": None})


def ours(case: type[SimpleTestCase]) -> dict[str, Any]:
    """The setting TASKS of a class of tests, with our backends in place of Django's."""
    tasks = getattr(case, OVERRIDDEN, None) or {}
    return {
        alias: params | STANDS_FOR[params["BACKEND"]] if params["BACKEND"] in STANDS_FOR else params
        for alias, params in tasks.get("TASKS", {}).items()
    }


@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in (cases() if SOURCE else ()) for name in unittest.TestLoader().getTestCaseNames(case)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_it_passes_on_our_backend(
    case: type[SimpleTestCase], name: str, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    reason = next((reason for reason, names in LEFT_OUT.items() if f"{case.__name__}.{name}" in names), "")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # some async tests of Django read a result by its sync twin
    tasks = ours(case)
    if tasks:
        monkeypatch.setattr(case, OVERRIDDEN, getattr(case, OVERRIDDEN) | {"TASKS": tasks}, raising=False)
    result = unittest.TestResult()
    with override_settings(DELAYQ={"default": {"STORE": {}}}), testing.use_memory_broker():
        unittest.TestSuite([case(name)]).run(result)
    told = [text for _, text in [*result.errors, *result.failures]]
    assert bool(told) is bool(reason), reason or told[0]
