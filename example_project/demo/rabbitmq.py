"""Run the demo's RabbitMQ: a node of its own, on ports of 127.0.0.1, with its data below `settings.VAR`."""

import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from django_delayq import BrokerUnavailable
from django_delayq.brokers import get_backend
from example_project.demo.waiting import NotInTime, wait_for

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The path on Debian. The program on PATH becomes the user `rabbitmq`, and knows one node."""


class RabbitMQ:
    """A node of RabbitMQ, and the port mapper by which Erlang's nodes find each other."""

    name = "RabbitMQ"

    def __init__(self) -> None:
        self._directory = settings.VAR / "rabbitmq"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the node on the data in its directory, and wait until it answers."""
        if not PROGRAM.exists():
            raise NotInTime(f"There is no {PROGRAM}; install it as root: apt-get install rabbitmq-server")
        self._directory.mkdir(exist_ok=True)
        environment = _environment(self._directory)
        port_mapper = ["epmd", "-port", environment["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
        log = self._directory.with_suffix(".log").open("ab")
        with log:
            self._processes = [
                subprocess.Popen(command, env=environment, cwd=self._directory, stdout=log, stderr=log)  # noqa: S603
                for command in (port_mapper, [str(PROGRAM)])
            ]
        wait_for("RabbitMQ", _answers, seconds=90)

    def lose_all(self) -> str:
        """Kill the node, remove its data, and start it again. Return what happened, in words."""
        self.stop()
        shutil.rmtree(self._directory)
        self.start()
        return "RabbitMQ is killed, loses its disk, and is started again"

    def stop(self) -> None:
        """Kill the node and the port mapper."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes = []


def _environment(directory: Path) -> dict[str, str]:
    port = str(urlsplit(settings.DELAYQ["default"]["LOCATION"]).port)
    directory.joinpath("plugins").write_text("[].")
    directory.joinpath("rabbitmq.conf").write_text("log.console = true\nlog.file = false\n")
    return {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(directory),
        "RABBITMQ_ERLANG_COOKIE": secrets.token_hex(16),
        "RABBITMQ_NODENAME": f"delayq-demo-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory),
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, instead of its parent
        "ERL_EPMD_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


def _answers() -> bool:
    try:
        get_backend().open()
    except BrokerUnavailable:
        return False
    return True


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
