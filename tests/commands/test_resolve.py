"""`delayq resolve` without a store; what it does with one is in tests/store/test_rules.py."""

import pytest
from django.core.management.base import CommandError

from django_delayq.brokers.base import Backend
from tests.commands.support import delayq


def test_without_a_store_there_is_nothing_to_resolve(carrying: Backend) -> None:
    with pytest.raises(CommandError, match="'default' has no store, which alone keeps the rules") as error:
        delayq("resolve", "--zone", "Europe/Rome")
    assert error.value.returncode == 1
