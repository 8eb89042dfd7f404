"""A plain function that hands on what an async one returned: nothing has run, so nothing is finished."""

from typing import Any

import pytest

from django_delayq import Message
from django_delayq.core.message import State
from tests.worker.rig import Rig, make_handler


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [False, True])
def test_a_handler_that_returns_an_awaitable_has_failed(rig: Rig, atomic: bool) -> None:
    async def work(message: Message[Any]) -> None:
        raise AssertionError("nobody awaits it")

    rig.send("a")
    rig.drain(make_handler(lambda message: work(message), max_attempts=1, atomic=atomic))
    info = rig.see("a")
    assert info.state is State.FAILED
    assert "write async def" in info.error
