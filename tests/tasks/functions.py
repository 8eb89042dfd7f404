"""The functions that the tests enqueue. Each notes what it got in `calls`."""

from typing import Any

from django_delayq import Bury, Retry, Snooze
from django_delayq.django_tasks import AnyContext, task
from tests.tasks.conftest import TAKES_OPTIONS

calls: list[Any] = []


def task_with(queue_name: str = "default", *, takes_context: bool = False, **options: Any) -> Any:
    """Make a task with these options of ours, as far as `@task` takes them."""
    return task(queue_name=queue_name, takes_context=takes_context, **(options if TAKES_OPTIONS else {}))


@task_with(max_attempts=1)  # type: ignore[untyped-decorator]
def add(first: int, second: int = 0) -> int:
    calls.append((first, second))
    return first + second


@task_with(max_attempts=1)  # type: ignore[untyped-decorator]
async def aadd(first: int, second: int = 0) -> int:
    calls.append((first, second))
    return first + second


@task_with(queue_name="emails", max_attempts=3, backoff=["1m", "1m"])  # type: ignore[untyped-decorator]
def fails(times: int) -> str:
    calls.append(times)
    if len(calls) <= times:
        raise ValueError(f"call {len(calls)} fails")
    return "at last"


@task_with(at_most_once=True)  # type: ignore[untyped-decorator]
def snoozes_once() -> None:
    raise Snooze("1m")


@task_with(takes_context=True, max_attempts=3, backoff=["1m"])  # type: ignore[untyped-decorator]
def with_context(context: AnyContext) -> dict[str, Any]:
    if context.attempt == 1:
        raise Retry
    return {"attempt": context.attempt, "id": context.task_result.id, "errors": len(context.task_result.errors)}


@task_with(max_attempts=3)  # type: ignore[untyped-decorator]
async def afails() -> None:
    raise Bury("of no use")


@task
def returns_what_is_no_json() -> object:
    return object()


@task
def raises_with_lines_like_those_of_a_traceback() -> None:
    error = ValueError("bad\nHint: x")
    error.add_note("context: y")
    raise error
