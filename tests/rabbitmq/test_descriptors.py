"""A process with many open files: its sockets have descriptors that `select` can't wait for."""

import os
import subprocess
import sys
from pathlib import Path

from tests.servers import RabbitMQServer

CHILD = """
import os, resource, sys

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096) if most > 0 else 4096, most))
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]

from django_delayq.brokers.base import Alarm, ClaimRequest
from django_delayq.brokers.rabbitmq import RabbitMQBroker
from django_delayq.conf import Alias

broker = RabbitMQBroker(Alias("default", location=sys.argv[1]))
wants = [ClaimRequest("q", "k", 1)]
assert not broker.take_due(wants, lease_ms=60_000, worker="w").alarms
broker.schedule([Alarm("q", "k", "7", 400)])
slept = 0
while not (alarms := broker.take_due(wants, lease_ms=60_000, worker="w").alarms):
    slept += broker.wait(30)
assert broker._link.connection.sock.fileno() > 1_023
print(alarms[0].pk, "slept" if slept else "")
broker.close()
"""


def test_a_process_with_many_open_files_receives(rabbitmq_server: RabbitMQServer) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, rabbitmq_server.url],
        cwd=Path(__file__).parents[2], env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (child.stdout.split(), child.stderr) == (["7", "slept"], "")
