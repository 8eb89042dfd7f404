"""Import the parts of Django's tasks under the same names from Django (6.0 and later) or the package `django-tasks`."""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    AnyTask: TypeAlias = Task[..., Any]
    AnyContext: TypeAlias = TaskContext[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]

    def task(function: Any = None, **options: Any) -> Any:
        """Stand in for the decorator, because its own types lack the options that a backend adds."""
else:
    try:
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus, task
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ImportError:
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus, task
        from django_tasks.exceptions import InvalidTaskError as InvalidTask, TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json

    AnyTask, AnyContext, AnyResult = Task, TaskContext, TaskResult

__all__ = [
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task",
    "task_enqueued",
    "task_finished",
    "task_started",
]
