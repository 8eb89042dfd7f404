"""Priorities with RabbitMQ as the timer: each lane's alarms come from a queue of its own."""

import pytest
from pytest_django import Settings

from django_delayq import send_delay_message
from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.worker import prefetch
from django_delayq.worker.options import Options
from django_delayq.worker.worker import Worker
from tests.rabbitmq.conftest import delayq_on
from tests.servers import RabbitMQServer
from tests.worker.rig import make_handler

COUNT = 5


def test_of_what_is_due_a_worker_runs_the_messages_of_a_higher_priority_first(
    settings: Settings, rabbitmq_server: RabbitMQServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "TIME_SLICE_S", 0)  # as if each message took longer: none is fetched ahead
    settings.DELAYQ = {"default": delayq_on(rabbitmq_server, database)}
    got: list[int] = []
    for _ in range(COUNT):
        for priority in (-9, 0, 9):
            send_delay_message("k", priority=priority)
    handlers = {"k": make_handler(lambda message: got.append(message.priority))}
    Worker(get_alias(), get_backend(), handlers, Options(threads=1, max_threads=1, max_messages=3 * COUNT)).run()
    get_backend().close()
    assert got == [9] * COUNT + [0] * COUNT + [-9] * COUNT
