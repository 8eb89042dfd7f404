"""Private RabbitMQ nodes, on ports of 127.0.0.1."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import amqp
import trustme
from amqp.exceptions import NotFound

from django_delayq.brokers.rabbitmq.names import LEVELS, Names
from tests.servers.process import DIES_WITH_US, PrivateServer, free_port, unprivileged

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Where Debian has them. Those on PATH become the user `rabbitmq`, and know one node."""

USER, PASSWORD = "delayq", "secret-rabbit"
CERTIFICATES = ("cacertfile", "certfile", "keyfile")
LEAST = {"configure": "^delayq[.]", "write": "^delayq[.]", "read": "^delayq[.]"}
"""The least permissions that work: the docs say the same."""


PORT_TAKEN = ("could_not_start_listener", "dist_port_already_used", "net_kernel")
"""What a node says that ends in its start because another process has one of its ports, or that of its port mapper."""


@cache
def rabbitmq_programs() -> Path | None:
    """The directory of the server's programs: DELAYQ_RABBITMQ, else what Debian has installed."""
    named = os.environ.get("DELAYQ_RABBITMQ")
    programs = Path(named) if named else PROGRAMS
    return programs if (programs / "rabbitmq-server").exists() and shutil.which("epmd") else None


def rabbitmq_version() -> str:
    """The version of those programs, as the directory says that Debian has them in; "" when it does not."""
    programs = rabbitmq_programs()
    found = programs and next(programs.parent.glob("lib/rabbitmq_server-*"), None)
    return found.name.partition("-")[2] if found else ""


def start_rabbitmq_node(programs: Path, **options: Any) -> "RabbitMQServer":
    """Start a node; with other ports where one was taken in the seconds until it listens, twice at most.

    Otherwise all tests of a process that share a node would fail in setup.
    """
    for _ in range(2):
        with suppress(_PortTakenError):
            return RabbitMQServer(programs, **options)
    return RabbitMQServer(programs, **options)


class _PortTakenError(RuntimeError):
    """A node did not start because another process has one of its ports."""


class RabbitMQServer(PrivateServer):
    """One node, with its own name, cookie, data and port mapper. It has one vhost, `/`, and `USER`.

    Options are lines of rabbitmq.conf: `RabbitMQServer(programs, vm_memory_high_watermark__absolute="1GB")`, with `__`
    for a dot. `wal_sync` is how the log of the queues gets to the disk: what was confirmed survives kill() anyway,
    though with "none" no loss of power. A node that nobody configured has "datasync".
    """

    READY = "server startup complete"

    def __init__(self, programs: Path, *, wal_sync: str = "none", **options: str | int) -> None:
        super().__init__(**unprivileged())
        self.programs = programs
        self.port, self.tls_port = free_port(), free_port()
        self.options: dict[str, str | int] = {
            "listeners__tcp__1": f"127.0.0.1:{self.port}",
            "listeners__ssl__1": f"127.0.0.1:{self.tls_port}",
            **{f"ssl_options__{file}": str(self.directory / f"{file}.pem") for file in CERTIFICATES},
            "log__console": "true",
            "log__file": "false",
            "disk_free_limit__absolute": "10MB",
            "load_definitions": str(self.directory / "definitions.json"),
            **options,
        }
        epmd_port, self._dist_port = free_port(), free_port()
        self._cookie = secrets.token_hex(16)
        self.environment = {
            "HOME": str(self.directory),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node, instead of its parent: it dies with us
            "RABBITMQ_NODENAME": f"delayq-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "none"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            # It must listen to nobody else, and not spin while it waits: the tests need the cores. What a queue that a
            # test deleted did not confirm is sent again soon.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
                " -rabbit dead_letter_worker_publisher_confirm_timeout 4000"
                f" -ra wal_sync_method {wal_sync}"
            ),
        }
        self._write("rabbitmq.conf", "".join(f"{n.replace('__', '.')} = {v}\n" for n, v in self.options.items()))
        self._write("plugins", "[].")
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        pems = (authority.cert_pem, certificate.cert_chain_pems[0], certificate.private_key_pem)
        for file, pem in zip(CERTIFICATES, pems, strict=True):
            self._write(f"{file}.pem", pem.bytes().decode())
        self._write("definitions.json", json.dumps(_definitions()))
        self._write(".erlang.cookie", self._cookie)
        # Else the node starts one, which outlives it.
        self._port_mapper = subprocess.Popen(
            [*DIES_WITH_US, "epmd", "-port", str(epmd_port), "-address", "127.0.0.1"],
            cwd="/", stdin=subprocess.DEVNULL, start_new_session=True, **self.identity,
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        try:
            super().start()
        except RuntimeError as error:
            if any(sign in str(error) for sign in PORT_TAKEN):
                raise _PortTakenError(str(error)) from None
            raise

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o400)
        if self.identity:
            os.chown(path, self.identity["user"], self.identity["group"])

    def command(self) -> list[str]:
        """The program and its arguments."""
        return ["env", "-i", *self._env(), str(self.programs / "rabbitmq-server")]

    def _env(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.environment.items()]

    @property
    def url(self) -> str:
        """LOCATION."""
        return self.url_at(self.port)

    @property
    def tls_url(self) -> str:
        """LOCATION over TLS, with the authority that vouches for it."""
        return f"amqps://{USER}:{PASSWORD}@127.0.0.1:{self.tls_port}/?ssl_ca_certs={self.directory}/cacertfile.pem"

    def url_at(self, port: int) -> str:
        """LOCATION over a port of 127.0.0.1 that leads here."""
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{port}/"

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port))

    def client(self) -> amqp.Connection:
        """A plain connection, for looking at the node behind the broker's back."""
        client = amqp.Connection(f"127.0.0.1:{self.port}", USER, PASSWORD, login_method="PLAIN")
        client.connect()
        return client

    def empty(self) -> None:
        """Delete what belongs to one (queue, key), and empty the rest: each before what it leads into."""
        names = Names("delayq")
        with self.client() as client, suppress(NotFound), client.channel() as channel:
            _take_register(channel, names.register)
            channel.basic_publish_confirm(amqp.Message("{}"), names.direct, names.register)
            while self.hands_on() or _purge_levels(channel, names):
                sleep(0.01)
            for queue in self.queues(f"{names.prefix}.ready."):
                channel.queue_delete(queue)
            for name in (names.stray, names.error):
                channel.queue_purge(name)

    def hands_on(self) -> bool:
        """Return whether some level has messages on their way out: a purge leaves them, and they arrive."""
        counts = "[Count || Q <- rabbit_amqqueue:list(), {_, Count} <- rabbit_amqqueue:info(Q, [messages_dlx])]"
        return "true" in self.run(f"lists:any(fun(Count) -> is_integer(Count) andalso Count > 0 end, {counts})")

    def queues(self, prefix: str) -> list[str]:
        """The names of the queues that begin like this: AMQP can't list them."""
        said = self.run("[binary_to_list(element(4, Name)) || Name <- rabbit_amqqueue:list_names()]")
        return [name for name in re.findall(r'"([^"]*)"', said) if name.startswith(prefix)]

    def reset(self) -> None:
        """Start it anew with nothing, whatever was done to it."""
        self.kill()
        shutil.rmtree(self.directory / "data")
        self.start()

    def run(self, erlang: str) -> str:
        """Return what the node answers when it runs this. rabbitmqctl can do the same, and takes seconds for it.

        Each call has a name of its own: the node refuses a name for as long as it has not noticed that the last call
        with that name has ended.
        """
        said = subprocess.run(
            ["erl_call", "-h", uuid4().hex, "-address", f"localhost:{self._dist_port}", "-c", self._cookie, "-e"],
            input=f"{erlang}.\n", text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ).stdout  # fmt: skip
        if not said.startswith("{ok"):
            raise RuntimeError(f"{erlang} answered {said}")
        return said

    def cut(self) -> None:
        """Close every connection of clients, again where one that ends by itself just then has ended the call."""
        while True:
            try:
                self.run('rabbit_networking:close_all_connections("cut by a test")')
            except RuntimeError as error:
                if "'EXIT',{normal," not in str(error):
                    raise
            else:
                return

    @contextmanager
    def memory_full(self) -> Iterator[None]:
        """Block whoever publishes: the memory alarm."""
        try:
            self._set_most_memory("{absolute, 1}", is_full=True)
            yield
        finally:
            self._set_most_memory("0.4", is_full=False)

    def _set_most_memory(self, most: str, is_full: bool) -> None:
        self.run(f"vm_memory_monitor:set_vm_memory_high_watermark({most})")
        while ("memory" in self.run("rabbit_alarm:get_alarms()")) is not is_full:
            sleep(0.01)

    def close(self) -> None:
        super().close()
        self._port_mapper.kill()
        self._port_mapper.wait()


def _take_register(channel: amqp.Channel, register: str) -> None:
    """Take what the register held. A worker that was killed while it had it gives it back in a moment."""
    for _ in range(100):
        if channel.basic_get(register, no_ack=True):
            return
        sleep(0.01)


def _purge_levels(channel: amqp.Channel, names: Names) -> int:
    """Empty the levels, and return how many messages they had."""
    return sum(channel.queue_purge(names.level(level)) for level in reversed(range(LEVELS)))


def _definitions() -> dict[str, object]:
    """Return who may do what, from the node's first start on."""
    return {
        "users": [{"name": USER, "password": PASSWORD, "tags": ""}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": USER, "vhost": "/", **LEAST}],
    }
