"""Priorities where the rows are the alarms: workers find the lanes of a queue, and the highest one comes first."""

import pytest
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.worker import prefetch
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.database.conftest import ALONE
from tests.worker.rig import make_handler

COUNT = 10


@pytest.mark.parametrize("is_drain", [True, False], ids=["drain", "serve"])
def test_no_lower_one_starts_before_a_higher_one_that_was_due(
    settings: Settings, database: str, monkeypatch: pytest.MonkeyPatch, is_drain: bool
) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)  # as if each message took longer: none is fetched ahead
    options = {"unknown_keys": "allow"}
    settings.DELAYQ = {"default": {"BROKER": ALONE, "DATABASE": database, "STORE": {}, "OPTIONS": options}}
    got: list[int] = []
    for _ in range(COUNT):
        for priority in (-9, 0, 9):
            send_delay_message(f"k{priority}", priority=priority)
    handlers = {f"k{n}": make_handler(lambda message: got.append(message.priority), f"k{n}") for n in (-9, 0, 9)}
    limit = None if is_drain else 3 * COUNT
    chosen = Options(threads=1, max_threads=1, drain=is_drain, max_messages=limit)
    Worker(get_alias(), get_backend(), handlers, chosen).run()
    get_backend().close()
    assert got == [9] * COUNT + [0] * COUNT + [-9] * COUNT
