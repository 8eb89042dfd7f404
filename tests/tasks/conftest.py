"""The backend on an alias with a store, whose clock tests move."""

from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.test import override_settings

TAKES_OPTIONS = django.VERSION[:2] != (6, 0)
"""Whether `@task` hands on the options of a backend. Django 6.0's does not."""
TASKS: dict[str, Any] = {
    "default": {"BACKEND": "django_delayq.tasks.DelayqBackend", "QUEUES": ["default", "emails"]},
}


@pytest.fixture(autouse=True)
def functions(db: None) -> Iterator[Any]:
    """The tasks, made for our backend, with no calls yet."""
    from django_delayq import testing

    with override_settings(TASKS=TASKS, DELAYQ={"default": {"STORE": {}}}), testing.use_memory_broker():
        from tests.tasks import functions

        functions.calls.clear()
        yield functions
