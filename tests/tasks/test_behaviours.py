"""What Django's own tests ask of a backend (tests/tasks in its source), in short: for where there is no such source."""

import dataclasses
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from django.utils import timezone

from django_delayq import Bury
from django_delayq.django_tasks import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task
from django_delayq.models import ReadyMessage
from django_delayq.testing import run_due
from tests.tasks.conftest import TASKS

TaskResultMismatch = sys.modules[TaskResultDoesNotExist.__module__].TaskResultMismatch


def test_using_gives_another_task_and_leaves_the_one_as_it_is(functions: Any) -> None:
    later = timezone.now() + timedelta(hours=1)
    assert functions.add.using() == functions.add
    assert functions.add.using() is not functions.add
    other = functions.add.using(run_after=later).using(priority=10).using(queue_name="emails")
    assert (other.run_after, other.priority, other.queue_name) == (later, 10, "emails")
    assert (functions.add.run_after, functions.add.priority, functions.add.queue_name) == (None, 0, "default")


def test_a_queue_that_the_settings_lack_is_refused_by_using_and_at_the_enqueue(functions: Any) -> None:
    with pytest.raises(InvalidTask):
        functions.add.using(queue_name="unknown")
    other = functions.add.using(queue_name="emails")
    with override_settings(TASKS={"default": TASKS["default"] | {"QUEUES": ["default"]}}), pytest.raises(InvalidTask):
        other.enqueue(1)
    with override_settings(TASKS={"default": TASKS["default"] | {"QUEUES": []}}):
        assert functions.add.using(queue_name="unknown").enqueue(1).task.queue_name == "unknown"


def test_a_time_without_a_zone_is_refused(functions: Any) -> None:
    with pytest.raises(InvalidTask):
        functions.add.using(run_after=datetime(2096, 1, 1))


def test_what_no_worker_can_import_is_no_task(functions: Any) -> None:
    for function in (any, lambda: None):
        with pytest.raises(InvalidTask):
            task()(function)


def test_a_task_that_takes_the_context_names_it(functions: Any) -> None:
    with pytest.raises(InvalidTask):
        task(takes_context=True)(functions.add.func)


def test_a_call_runs_the_function_and_sends_nothing(functions: Any) -> None:
    assert functions.add.call(1, 2) == functions.aadd.call(1, 2) == 3
    assert async_to_sync(functions.add.acall)(1, 2) == async_to_sync(functions.aadd.acall)(1, 2) == 3
    assert not ReadyMessage.objects.exists()


def test_a_result_belongs_to_its_task(functions: Any) -> None:
    result = functions.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        functions.aadd.get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        functions.add.get_result("123")
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(functions.add.aget_result)("123")


def test_a_result_that_is_read_again_stays_the_same(functions: Any) -> None:
    result = functions.add.enqueue(1)
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before


def test_a_task_has_no_value_before_its_end(functions: Any) -> None:
    result = functions.add.enqueue(1)
    assert (result.is_finished, result.started_at, result.finished_at, result.attempts) == (False, None, None, 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_a_task_that_failed_has_its_error_and_no_value(functions: Any) -> None:
    result = functions.afails.enqueue()
    run_due(errors="keep")
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
    assert result.errors[0].exception_class is Bury
    assert result.errors[0].traceback.endswith("Bury: of no use\n")
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
