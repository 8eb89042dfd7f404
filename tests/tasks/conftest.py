"""The backend on an alias with a store, whose clock tests move."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

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
