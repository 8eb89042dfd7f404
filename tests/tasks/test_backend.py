"""A task runs as a message, and its result is what the tables say of it."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_delayq import DelayqError, DuplicateMessage, delay_execute, get_delay_message, send_delay_message
from django_delayq.django_tasks import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from django_delayq.models import FinishMessage, ReadyMessage, ReturnedValue
from django_delayq.store.forget import forget
from django_delayq.store.operations import prune_finished
from django_delayq.tasks import DelayqBackend
from django_delayq.testing import arun_due, run_due
from tests.tasks.conftest import TAKES_OPTIONS, TASKS

with_options = pytest.mark.skipif(not TAKES_OPTIONS, reason="Django 6.0's @task takes no options of a backend")


def test_a_task_runs_with_its_arguments_and_its_result_has_what_it_returned(functions: Any) -> None:
    result = functions.add.enqueue(1, second=2)
    assert (result.status, result.enqueued_at is None, result.args, result.kwargs) == (
        TaskResultStatus.READY, False, [1], {"second": 2},
    )  # fmt: skip
    assert functions.add.get_result(result.id) == result
    run_due()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert functions.calls == [(1, 2)]


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("countdown", r"write run_after=timezone\.now\(\) \+ timedelta\(\.\.\.\)\."),
        ("eta", r"write run_after=\.\.\.\."),
        ("queue", r"write queue_name=\.\.\.\."),
        ("priorty", r"did you mean 'priority'\?"),
    ],
)
def test_an_option_of_other_libraries_is_refused_with_what_to_write(functions: Any, option: str, instead: str) -> None:
    with pytest.raises(TypeError, match=f"there is no option '{option}': {instead}"):
        functions.add.using(**{option: 5})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("delay", r"enqueue\(\.\.\.\)\."),
        ("apply_async", r"using\(run_after=\.\.\.\)\.enqueue\(\.\.\.\)\."),
        ("asend", r"aenqueue\(\.\.\.\)\."),
    ],
)
def test_a_method_of_other_libraries_says_what_to_write(functions: Any, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"DelayqTask.* has no attribute '{name}'; write {instead}"):
        getattr(functions.add, name)
    assert not hasattr(functions.add, name)


def test_the_message_of_a_task_is_one_like_any_other(functions: Any) -> None:
    result = functions.fails.enqueue(0)
    info = get_delay_message(result.id)
    assert info is not None
    assert (info.key, info.queue) == ("tests.tasks.functions.fails", "emails")


def test_tasks_run_by_their_priority_and_their_results_have_it(functions: Any) -> None:
    results = [functions.add.using(priority=priority).enqueue(priority) for priority in (-5, 0, 100, 7)]
    assert [functions.add.get_result(result.id).task.priority for result in results] == [-5, 0, 100, 7]
    assert functions.add.get_result(results[0].id) == results[0]
    run_due()
    assert [first for first, _ in functions.calls] == [100, 7, 0, -5]
    results[0].refresh()
    assert (results[0].status, results[0].task.queue_name) == (TaskResultStatus.SUCCESSFUL, "default")


@pytest.mark.parametrize("priority", [101, -101, 1.5])
def test_a_priority_that_django_has_not_is_refused(functions: Any, priority: Any) -> None:
    with pytest.raises(InvalidTask):
        functions.add.using(priority=priority)


def test_a_task_that_is_rolled_back_is_not_sent(functions: Any) -> None:
    with transaction.atomic():
        result = functions.add.enqueue(1)
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        functions.add.get_result(result.id)


@with_options
@pytest.mark.parametrize(("times", "status"), [(2, TaskResultStatus.SUCCESSFUL), (3, TaskResultStatus.FAILED)])
def test_a_task_that_fails_runs_again_and_its_errors_are_kept(functions: Any, times: int, status: str) -> None:
    result = functions.fails.enqueue(times)
    run_due(errors="keep")
    result.refresh()
    assert (result.status, len(result.errors), result.is_finished) == (TaskResultStatus.READY, 1, False)
    run_due(until="1h", errors="keep")
    result.refresh()
    assert (result.status, len(result.errors), result.attempts) == (status, times, 3)
    assert {error.exception_class for error in result.errors} == {ValueError}
    assert "call 1 fails" in result.errors[0].traceback


def test_the_context_counts_attempts_and_knows_the_earlier_errors(functions: Any) -> None:
    result = functions.with_context.enqueue()
    run_due(until="1h", errors="keep")
    result.refresh()
    assert result.return_value == {"attempt": 2, "id": result.id, "errors": 1}


def test_async_tasks_run_and_return_like_sync_ones(functions: Any) -> None:
    added, failed = functions.aadd.enqueue(1, 2), functions.afails.enqueue()
    run_due(errors="keep")
    added.refresh()
    failed.refresh()
    assert (added.return_value, failed.status) == (3, TaskResultStatus.FAILED)
    assert failed.errors[0].exception_class.__name__ == "Bury"


def test_everything_has_an_async_twin(functions: Any) -> None:
    async def work() -> None:
        result = await functions.add.aenqueue(1, 2)
        await arun_due()
        await result.arefresh()
        assert result == await functions.add.aget_result(result.id)
        assert result.return_value == 3

    async_to_sync(work)()


def test_a_deferred_task_starts_at_its_time_and_not_before(functions: Any) -> None:
    run_after = timezone.now() + timedelta(hours=1)
    result = functions.add.using(run_after=run_after).enqueue(1)
    assert functions.add.get_result(result.id) == result
    assert run_due(until="59m") == []
    assert [attempt.id for attempt in run_due(until="1h")] == [result.id]


def test_what_a_task_returned_that_is_no_json_fails_it(functions: Any) -> None:
    result = functions.returns_what_is_no_json.enqueue()
    run_due(errors="keep")
    result.refresh()
    assert result.errors[0].exception_class is TypeError


def test_the_class_of_an_error_is_found_whatever_its_text_looks_like(functions: Any) -> None:
    result = functions.raises_with_lines_like_those_of_a_traceback.enqueue()
    run_due(errors="keep")
    result.refresh()
    assert result.errors[0].exception_class is ValueError


def test_arguments_that_are_no_json_are_refused_before_anything_is_sent(functions: Any) -> None:
    with pytest.raises(TypeError):
        functions.add.enqueue(object())
    assert not ReadyMessage.objects.exists()


def test_a_task_can_have_an_id_of_its_own_and_be_replaced_cancelled_and_rescheduled(functions: Any) -> None:
    close = functions.add.using(id="order:7:close", tag="order:7", run_after=timezone.now() + timedelta(days=1))
    close.using(on_conflict="replace").enqueue(1)
    result = close.using(on_conflict="replace").enqueue(2)
    with pytest.raises(DuplicateMessage):
        close.using(on_conflict="raise").enqueue(3)
    assert functions.add.get_result("order:7:close").args == [2]
    assert close.reschedule("order:7:close", delay="2d") == 1
    assert close.cancel(tag="order:7") == 1
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (TaskResultStatus.FAILED, DelayqError)


def test_a_task_that_keeps_its_id_is_the_result_and_is_not_enqueued_again(functions: Any) -> None:
    close = functions.add.using(id="order:7:close", run_after=timezone.now() + timedelta(days=1))
    told: list[Any] = []

    def tell(**kwargs: Any) -> None:
        told.append(kwargs["task_result"].args)

    task_enqueued.connect(tell)
    try:
        close.enqueue(1)
        assert close.enqueue(2).args == [1]
        assert close.using(on_conflict="latest").enqueue(3).args == [1]
        assert async_to_sync(close.aenqueue)(4).args == [1]
        assert close.using(on_conflict="replace").enqueue(5).args == [5]
    finally:
        task_enqueued.disconnect(tell)
    assert told == [[1], [5]]


def test_an_id_that_is_used_once_for_ever_is_refused_after_the_task_has_ended(functions: Any) -> None:
    welcome = functions.add.using(id="welcome:7", id_scope="all")
    welcome.enqueue(1, 2)
    run_due()
    for again in welcome, welcome.using(on_conflict="replace"):
        result = again.enqueue(3, 4)
        assert (result.status, result.args) == (TaskResultStatus.SUCCESSFUL, [1, 2])
    run_due()
    assert functions.calls == [(1, 2)]
    with pytest.raises(DuplicateMessage, match=r"Ended already: 'welcome:7'"):
        welcome.using(on_conflict="raise").enqueue(3, 4)


def test_an_option_of_the_handler_is_refused_once_it_is_registered(functions: Any) -> None:
    with pytest.raises(InvalidTask, match=r"max_attempts=2 comes too late for 'tests\.tasks\.functions\.add'.*@task"):
        functions.add.using(max_attempts=2)


@with_options
def test_the_three_signals_tell_of_a_task_and_of_its_last_failure_only(functions: Any) -> None:
    told: list[Any] = []

    def tell(**kwargs: Any) -> None:
        told.append((kwargs["signal"], kwargs["sender"], kwargs["task_result"].status))

    signals = [task_enqueued, task_started, task_finished]
    for signal in signals:
        signal.connect(tell)
    try:
        functions.fails.enqueue(3)
        run_due(until="1h", errors="keep")
        functions.add.enqueue(1)
        run_due(errors="keep")
    finally:
        for signal in signals:
            signal.disconnect(tell)
    assert {sender for _, sender, _ in told} == {DelayqBackend}
    ready, running = TaskResultStatus.READY, TaskResultStatus.RUNNING
    assert [(signal, status) for signal, _, status in told] == [
        (task_enqueued, ready),
        *[(task_started, running)] * 3,
        (task_finished, TaskResultStatus.FAILED),
        (task_enqueued, ready),
        (task_started, running),
        (task_finished, TaskResultStatus.SUCCESSFUL),
    ]


@with_options
def test_a_snooze_of_a_task_that_must_not_start_twice_is_its_failure(functions: Any) -> None:
    told: list[Any] = []

    def tell(**kwargs: Any) -> None:
        told.append(kwargs["task_result"].status)

    task_finished.connect(tell)
    try:
        functions.snoozes_once.enqueue()
        run_due(errors="keep")
    finally:
        task_finished.disconnect(tell)
    assert told == [TaskResultStatus.FAILED]


def test_a_result_is_kept_as_long_as_its_finished_row(functions: Any) -> None:
    result = functions.add.enqueue(1)
    run_due()
    database = DelayqBackend("default", {})._database()
    assert prune_finished(database, database.now_ms() - 60_000) == 0
    assert functions.add.get_result(result.id).return_value == 1
    assert prune_finished(database, database.now_ms() + 60_000) == 1
    assert (FinishMessage.objects.count(), ReturnedValue.objects.count()) == (0, 0)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_what_a_task_returned_is_forgotten_with_its_message(functions: Any) -> None:
    result, other = functions.add.enqueue(1), functions.add.enqueue(2)
    run_due()
    forget(DelayqBackend("default", {})._database(), [result.id])
    assert [kept.message_id for kept in ReturnedValue.objects.all()] == [other.id]


def test_a_message_that_is_no_task_has_no_result_and_data_that_no_task_wrote_fails(functions: Any) -> None:
    sent = send_delay_message("tests.tasks.functions.add", {"args": "x"})
    with pytest.raises(TaskResultDoesNotExist):
        functions.add.get_result(sent.id)
    assert "can't be read" in run_due(errors="keep")[0].error


def test_a_task_for_a_key_of_an_ordinary_handler_is_refused(functions: Any) -> None:
    def taken(message: Any) -> None: ...

    delay_execute(key="tests.tasks.test_backend.taken")(taken)
    taken.__qualname__ = "taken"
    with pytest.raises(InvalidTask, match="no task"):
        DelayqBackend("default", {}).task_class(
            func=taken, priority=0, backend="default", queue_name="default", run_after=None
        )


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_attempt": 1}, "did you mean 'max_attempts'"), ({"using": "elsewhere"}, "")],
)
def test_wrong_options_are_told_by_name(options: dict[str, Any], reason: str) -> None:
    if reason:
        with pytest.raises(ImproperlyConfigured, match=reason):
            DelayqBackend("default", {"OPTIONS": options})
    else:
        assert [message.id for message in DelayqBackend("default", {"OPTIONS": options}).check()] == ["delayq.E016"]


@pytest.mark.parametrize("delayq", ["redis://cache-1", {"default": {"LOCATON": "redis://cache-1"}}])
def test_a_wrong_setting_of_delayq_is_left_to_the_check_of_the_settings(delayq: Any) -> None:
    with override_settings(DELAYQ=delayq):
        assert DelayqBackend("default", TASKS["default"]).check() == []


def test_without_a_store_tasks_run_and_results_can_not_be_read(functions: Any) -> None:
    with override_settings(DELAYQ={"default": {"STORE": None}}):
        backend = DelayqBackend("default", TASKS["default"])
        assert [message.id for message in backend.check()] == ["delayq.W013"]
        assert not backend.supports_get_result
        with pytest.raises(NotImplementedError):
            backend.get_result("any")


def test_django_checks_our_backend(functions: Any) -> None:
    assert [message for message in run_checks() if "TASKS" in message.msg] == []
