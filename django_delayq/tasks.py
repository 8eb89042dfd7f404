"""Run Django's tasks as delayed messages: `django.tasks`, and on Django 5.2 the package `django-tasks`.

```python
TASKS = {"default": {"BACKEND": "django_delayq.tasks.DelayqBackend", "QUEUES": ["default", "emails"]}}
```

A task is an ordinary message. Its key is the dotted path of the function, its handler calls that function, and its
result's id is the message's id.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules, import_string
from django.utils.text import capfirst

from django_delayq.api.handlers import Handler, delay_execute, get_handler
from django_delayq.api.operations import cancel_delay_messages, reschedule_delay_messages
from django_delayq.api.send import asend_delay_message, send_delay_message
from django_delayq.api.unknown import NoMethod, refuse_unknown
from django_delayq.brokers import get_backend
from django_delayq.conf import DEFAULT_ALIAS, alias_names, get_alias
from django_delayq.core.errors import Bury, DelayqError, Snooze
from django_delayq.core.history import Ended, PastAttempt
from django_delayq.core.human_time import At, Windows
from django_delayq.core.lanes import lane_of, split_lane
from django_delayq.core.message import IdScope, Message, OnConflict, Sent, State, Tags, WhileRunning
from django_delayq.core.retry import Backoff
from django_delayq.core.transitions import Policy
from django_delayq.django_tasks import (
    AnyContext,
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)
from django_delayq.signals import emit
from django_delayq.store import returned
from django_delayq.store.database import Database
from django_delayq.store.queries import MessageFacts, message_facts
from django_delayq.support.timestamps import from_ms
from django_delayq.support.units import Duration
from django_delayq.support.validation import did_you_mean, short_repr
from django_delayq.worker.failure import traceback_of

__all__ = ["DelayqBackend", "DelayqTask"]

_HANDLER_OPTIONS = (
    *("max_attempts", "backoff", "timeout", "expires", "atomic", "at_most_once"),
    *("concurrency", "max_concurrency", "rate_limit"),
)
"""The options of `delay_execute` that a task can set for itself, and `OPTIONS` for all tasks of a backend."""

_STATUSES = {
    State.PENDING: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.FINISHED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_ERRORS = (Ended.FAILED, Ended.CRASHED, Ended.LOST, Ended.BURIED)
"""The ends of attempts that count as errors of a task. A snooze and an interruption by a worker's stop do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayqTask(AnyTask):
    """A task with the options of delayq that Django's tasks lack.

    The first ones are options of `delay_execute`. They hold for the function, so give them to `@task`: once its handler
    is registered, `using` can't change them any more, and raises `InvalidTask`. Django 6.1 and `django-tasks` pass them
    on; with Django 6.0 only `OPTIONS` can set them. The others, from `id` on, are options of `send_delay_message`, for
    one message, and `using` sets them.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    atomic: bool | None = None
    at_most_once: bool | None = None
    concurrency: int | None = None
    max_concurrency: int | None = None
    rate_limit: str | None = None

    id: str | None = None
    on_conflict: OnConflict = "keep"
    id_scope: IdScope | None = None
    max_wait: Duration | None = None
    while_running: WhileRunning = "drop"
    tag: Tags | None = None
    trace_id: str | None = None

    def using(self, **changes: Any) -> "DelayqTask":
        """Return a task with these options in place of its own. None leaves an option as it is."""
        refuse_unknown(changes, _OPTIONS, _OPTIONS_ELSEWHERE)
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    if not TYPE_CHECKING:  # else a type checker would take them for attributes
        delay = NoMethod("enqueue(...)")
        delay_on_commit = NoMethod("enqueue(...): with a store it is a part of the transaction")
        apply_async = NoMethod("using(run_after=...).enqueue(...)")
        schedule = NoMethod("using(run_after=...).enqueue(...)")
        send = NoMethod("enqueue(...)")
        asend = NoMethod("aenqueue(...)")
        defer = NoMethod("enqueue(...)")

    def cancel(self, *ids: str, tag: str | None = None) -> int:
        """Cancel tasks that wait, by the ids of their results or by tag, like `cancel_delay_messages`."""
        return cancel_delay_messages(*ids, tag=tag, using=self._alias())

    def reschedule(
        self,
        *ids: str,
        tag: str | None = None,
        delay: Duration | None = None,
        at: datetime | At | None = None,
        window: Windows | None = None,
    ) -> int:
        """Give waiting tasks a new due time, like `reschedule_delay_messages`."""
        return reschedule_delay_messages(*ids, tag=tag, delay=delay, at=at, window=window, using=self._alias())

    def _alias(self) -> str:
        return cast("DelayqBackend", self.get_backend()).using


_OPTIONS = [each.name for each in fields(DelayqTask)]
_RUN_AFTER = "run_after=timezone.now() + timedelta(...)"
_OPTIONS_ELSEWHERE = {
    "countdown": _RUN_AFTER,
    "delay": _RUN_AFTER,
    "eta": "run_after=...",
    "at": "run_after=...",
    "queue": "queue_name=...",
    "task_id": "id=...",
}


class DelayqBackend(BaseTaskBackend):
    """The backend that sends tasks as delayed messages, and reads their results from the tables of a store.

    `OPTIONS` may have `using`, an alias of `DELAYQ`, and defaults for the options of `DelayqTask` up to `rate_limit`.
    Raises `ImproperlyConfigured` for any other option. It opens no connection until it is used.
    """

    task_class = DelayqTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, dict(params))
        known = ("using", *_HANDLER_OPTIONS)
        for name in self.options:
            if name not in known:
                raise ImproperlyConfigured(
                    f'TASKS["{alias}"]["OPTIONS"] has no option {name!r}: {did_you_mean(str(name), known)}'
                )
        self.using: str = self.options.get("using", DEFAULT_ALIAS)

    @property
    def supports_get_result(self) -> bool:  # type: ignore[override]
        """Return whether results can be read: only a store keeps messages that have ended."""
        return get_alias(self.using).store is not None

    def validate_task(self, task: AnyTask) -> None:
        """Raise `InvalidTask` unless the task can run here, and register its handler.

        Django calls this for every task that is made for this backend, so a worker that has imported the task's module
        has its handler.
        """
        super().validate_task(task)
        handler = get_handler(self.using, task.module_path)
        if handler is None:
            _register(task, self)
            return
        registered = getattr(handler.func, "task", None)
        if registered is None:
            raise InvalidTask(f"The key {task.module_path!r} belongs to a handler that is no task.")
        for name in _HANDLER_OPTIONS:
            value = getattr(task, name, None)
            if value is not None and value != getattr(registered, name, None):
                raise InvalidTask(
                    f"{name}={short_repr(value)} comes too late for {task.module_path!r}, whose handler is registered: "
                    "give it to @task, or put it into OPTIONS."
                )

    def enqueue(  # type: ignore[override]  # in the types a result is of the task's own
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """Send the task as a message: a part of the caller's transaction or, without a store, after its commit.

        If an earlier task keeps its id, return that task's result, and send no `task_enqueued`.

        Raises like `validate_task` and `send_delay_message`, and like Django for arguments that JSON does not carry.
        """
        self.validate_task(task)
        now = timezone.now()
        sent = send_delay_message(task.module_path, _data(task, args, kwargs, now), **self._when(task))
        return self._enqueued(task, args, kwargs, now, sent)

    async def aenqueue(  # type: ignore[override]  # as above
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """Send like `enqueue`, from async code."""
        self.validate_task(task)
        now = timezone.now()
        sent = await asend_delay_message(task.module_path, _data(task, args, kwargs, now), **self._when(task))
        return await sync_to_async(self._enqueued)(task, args, kwargs, now, sent)

    def _when(self, task: AnyTask) -> dict[str, Any]:
        own = (
            ("id", "on_conflict", "id_scope", "max_wait", "while_running", "tag", "trace_id")
            if isinstance(task, DelayqTask)
            else ()
        )
        return {name: getattr(task, name) for name in own} | {
            "at": task.run_after,
            "queue": task.queue_name,
            "priority": int(task.priority),  # to Django 5.0 is a whole number too
            "using": self.using,
        }

    def _enqueued(
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any], now: datetime, sent: Sent
    ) -> AnyResult:
        result = _result(task, sent.id, self.alias, args, kwargs, now)
        replaces = getattr(task, "on_conflict", "keep") == "replace"
        is_kept = sent.created is False and (sent.running or sent.ended or not replaces) and not sent.kept
        if not is_kept:
            emit(task_enqueued, type(self), task_result=result)
        elif self.supports_get_result:  # of the earlier task, whose arguments these may not be
            with suppress(TaskResultDoesNotExist):
                return self.get_result(sent.id)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return the result of the task that waits or runs under the id, or else of the one that ended last.

        Raises `TaskResultDoesNotExist` if there is none, or its row was pruned, or its function is not known here.
        """
        if not self.supports_get_result:
            return super().get_result(result_id)
        facts = message_facts(self._database(), result_id)
        task = None if facts is None else self._task_of(facts.info.header.key)
        if facts is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return _read_result(self, task, facts)

    def _database(self) -> Database:
        store = get_backend(self.using).store
        if store is None:
            raise ImproperlyConfigured(f'DELAYQ["{self.using}"] has no store, and only a store keeps results.')
        return cast("Database", store.database)

    def _task_of(self, key: str) -> AnyTask | None:
        handler = get_handler(self.using, key)
        return None if handler is None else getattr(handler.func, "task", None)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check that the alias exists (E016), and warn if it has no store to keep results (W013)."""
        try:
            names = alias_names()
            if self.using in names and self.supports_get_result:
                return []
        except ImproperlyConfigured:
            return []  # E001 reports it
        if self.using not in names:
            return [
                Error(
                    f'TASKS["{self.alias}"]["OPTIONS"]["using"]={self.using!r} is no alias of DELAYQ.',
                    hint=capfirst(did_you_mean(self.using, names)),
                    id="delayq.E016",
                )
            ]
        return [
            Warning(
                f'DELAYQ["{self.using}"] has no store, so the results of tasks can not be read.',
                hint='Leave "STORE": None out of the alias, or don\'t call get_result() and refresh().',
                id="delayq.W013",
            )
        ]


def autodiscover() -> None:
    """Import the module `tasks` of each app, if a backend in `TASKS` is ours: a worker must know the functions."""
    if any(issubclass(import_string(params["BACKEND"]), DelayqBackend) for params in settings.TASKS.values()):
        autodiscover_modules("tasks")


def _register(task: AnyTask, backend: DelayqBackend) -> Handler[Any, Any]:
    """Register the handler that runs the function of a task. Raises like `delay_execute`, naming the function."""
    given = {name: getattr(task, name) for name in _HANDLER_OPTIONS if getattr(task, name, None) is not None}
    options = {name: value for name, value in backend.options.items() if name in _HANDLER_OPTIONS}

    def run(message: Message[Any]) -> None:
        _run(task, backend, message)

    async def arun(message: Message[Any]) -> None:
        await _arun(task, backend, message)

    func: Any = arun if iscoroutinefunction(task.func) else run
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):  # errors, logs and the admin name the function
        setattr(func, name, getattr(task.func, name))
    func.task = task
    register = delay_execute(
        task.module_path, queue=task.queue_name, priority=int(task.priority), using=backend.using, **(options | given)
    )
    return register(func)


# Running a task


def _run(task: AnyTask, backend: DelayqBackend, message: Message[Any]) -> None:
    """Call the function of a task, keep what it returns, and send Django's signals."""
    result = _starting(task, backend, message)
    try:
        value = normalize_json(task.func(*_context(task, result), *result.args, **result.kwargs))
        _keep(backend, message, value)
    except BaseException as exception:
        _failed(backend, message, result, exception)
        raise
    _finished(backend, result, value)


async def _arun(task: AnyTask, backend: DelayqBackend, message: Message[Any]) -> None:
    """Call an async function like `_run`."""
    result = await sync_to_async(_starting)(task, backend, message)
    try:
        value = normalize_json(await task.func(*_context(task, result), *result.args, **result.kwargs))
        if value is not None:
            await sync_to_async(_keep)(backend, message, value)
    except BaseException as exception:
        _failed(backend, message, result, exception)  # here, where a receiver finds the exception in sys.exc_info()
        raise
    await sync_to_async(_finished)(backend, result, value)


def _starting(task: AnyTask, backend: DelayqBackend, message: Message[Any]) -> AnyResult:
    """Send Django's `task_started` for an attempt that is about to start, and return the task's result, now running."""
    result = _read_data(task, backend, message.id, lane_of(message.queue, message.priority), message.data)
    started = from_ms(message.started_ms)
    earlier = [] if message.attempt == 1 else _earlier_attempts(backend, message)
    _change(
        result,
        status=TaskResultStatus.RUNNING,
        started_at=_at(earlier[0].started if earlier else None) or started,
        last_attempted_at=started,
        errors=_errors_of(earlier),
        worker_ids=[*_workers_of(earlier), message.worker],
    )
    emit(task_started, type(backend), task_result=result)
    return result


def _earlier_attempts(backend: DelayqBackend, message: Message[Any]) -> Sequence[PastAttempt]:
    facts = message_facts(backend._database(), message.id) if backend.supports_get_result else None
    if facts is None:  # without a store nobody knows more than how many there were
        return [PastAttempt(n + 1, None, 0, "", Ended.SNOOZED) for n in range(message.attempt - 1)]
    return facts.attempts


def _context(task: AnyTask, result: AnyResult) -> tuple[AnyContext, ...]:
    return (TaskContext(task_result=result),) if task.takes_context else ()


def _keep(backend: DelayqBackend, message: Message[Any], value: Any) -> None:
    if value is not None and backend.supports_get_result:
        returned.keep(backend._database(), message.id, json.dumps(value))


def _failed(backend: DelayqBackend, message: Message[Any], result: AnyResult, exception: BaseException) -> None:
    """Send Django's `task_finished` if the task has failed for good: at its last attempt, or with `Bury`.

    A `Snooze` ends only what must not start twice.

    It is not sent for a task that expires before it could be tried again: how long it would wait is decided later.
    """
    handler = get_handler(backend.using, message.key)
    policy = Policy() if handler is None else handler.policy
    is_last = policy.max_attempts is not None and message.attempt >= policy.max_attempts
    ends = policy.at_most_once if isinstance(exception, Snooze) else is_last or isinstance(exception, Bury)
    if not ends:
        return
    _change(
        result,
        status=TaskResultStatus.FAILED,
        finished_at=timezone.now(),
        errors=[*result.errors, _error(exception)],
    )
    emit(task_finished, type(backend), task_result=result)


def _finished(backend: DelayqBackend, result: AnyResult, value: Any) -> None:
    _change(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
    emit(task_finished, type(backend), task_result=result)


# Results, and the data of messages


def _data(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the data of a task's message: the arguments, and facts about the task that the row has no column for.

    So a result that is read from the row equals the one that `enqueue` returned.
    """
    data = {"args": args, "kwargs": kwargs, "backend": task.backend, "enqueued_at": now.isoformat()}
    if task.run_after is not None:
        data["run_after"] = task.run_after.isoformat()
    plain: dict[str, Any] = json.loads(json.dumps(normalize_json(data)))  # the keys of a dict become text, as in Django
    return plain


def _result(
    task: AnyTask, id: str, backend: str, args: Sequence[Any], kwargs: Mapping[str, Any], enqueued_at: datetime
) -> AnyResult:
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def _change(result: AnyResult, **values: Any) -> None:
    for name, value in values.items():  # it is frozen for its readers; Django's own backends write it like this
        object.__setattr__(result, name, value)


def _read_data(task: AnyTask, backend: DelayqBackend, id: str, lane: str, data: Any) -> AnyResult:
    """Return the task's result as `enqueue` returned it, rebuilt from the message's `data`.

    Raises `Bury` if `data` can't be read, because something other than a task wrote it.
    """
    queue, priority = split_lane(lane)
    try:
        run_after = data.get("run_after")
        called = replace(
            task,
            backend=data.get("backend", backend.alias),
            queue_name=queue,
            priority=priority,
            run_after=None if run_after is None else datetime.fromisoformat(run_after),
        )
        enqueued_at = datetime.fromisoformat(data["enqueued_at"])
        return _result(called, id, called.backend, data["args"], data["kwargs"], enqueued_at)
    except (AttributeError, KeyError, TypeError, ValueError, InvalidTask, ImproperlyConfigured) as error:
        raise Bury(f"The data of a task can't be read ({type(error).__name__}: {error}).") from error


def _read_result(backend: DelayqBackend, task: AnyTask, facts: MessageFacts) -> AnyResult:
    """Return the result of a task's message, read from the tables.

    Raises `TaskResultDoesNotExist` if the message's data are not those of a task.
    """
    info = facts.info
    try:
        result = _read_data(task, backend, info.id, info.header.queue, json.loads(info.body))
    except (Bury, ValueError) as error:
        raise TaskResultDoesNotExist(info.id) from error
    is_running = info.state is State.RUNNING
    attempts = [each for each in facts.attempts if each.started is not None]
    starts = [_at(each.started) for each in attempts] + ([_at(facts.running_since_ms)] if is_running else [])
    _change(
        result,
        status=_STATUSES[info.state],
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        finished_at=_at(facts.ended_ms),
        errors=_errors_of(facts.attempts),
        worker_ids=_workers_of(attempts) + ([info.holder] if is_running else []),
    )
    if info.state is State.CANCELLED:
        result.errors.append(_own_error("The task was cancelled before it ran."))
    if info.state is State.FINISHED:
        value = returned.read(backend._database(), info.id)
        _change(result, _return_value=None if value is None else json.loads(value))
    return result


def _at(epoch_ms: int | None) -> datetime | None:
    return None if epoch_ms is None else from_ms(epoch_ms)


def _workers_of(attempts: Iterable[PastAttempt]) -> list[str]:
    return [each.worker for each in attempts]


def _errors_of(attempts: Iterable[PastAttempt]) -> list[TaskError]:
    return [
        _told_error(each) if each.traceback else _own_error(each.error or f"The attempt was {each.outcome}.")
        for each in attempts
        if each.outcome in _ERRORS
    ]


def _told_error(attempt: PastAttempt) -> TaskError:
    """Return the error of an attempt whose traceback was kept.

    The dotted path of the exception's class begins a line of the traceback. Later lines may be of the exception's own
    text or notes, so the path is looked up by the name of the class, with which the error begins.
    """
    name = attempt.error.partition(" ")[0].partition(":")[0]
    for line in reversed(attempt.traceback.splitlines()):
        path = line.partition(":")[0]
        if f".{path}".endswith(f".{name}") and all(part.isidentifier() for part in path.split(".")):
            path = path if "." in path else f"builtins.{path}"
            return TaskError(exception_class_path=path, traceback=attempt.traceback)
    return _own_error(attempt.traceback)


def _error(exception: BaseException) -> TaskError:
    kind = type(exception)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=traceback_of(exception, _error)
    )


def _own_error(text: str) -> TaskError:
    return TaskError(exception_class_path=f"{DelayqError.__module__}.{DelayqError.__qualname__}", traceback=text)
