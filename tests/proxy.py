"""A network that fails: a port before a server that can lose or hold a reply, or cut a connection on a command."""

import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers import MariaDBServer, PostgresServer, RabbitMQServer, Server

AnyServer = MariaDBServer | PostgresServer | RabbitMQServer | Server


class Fault:
    """What happens to the first request that holds `match`; `happened` is set when it has."""

    def __init__(self, match: bytes, reaches_server: bool, cuts: bool = True) -> None:
        self.match = match
        self.reaches_server = reaches_server
        self.cuts = cuts
        self.happened = threading.Event()


class Proxy:
    """Forwards every byte between clients of its port and the server, until it is told to fail."""

    def __init__(self, server: AnyServer) -> None:
        self.server = server
        self.port = 0
        self.seconds_a_byte = 0.0
        """How slowly replies come."""
        self._faults: list[Fault] = []

    @property
    def url(self) -> str:
        """LOCATION of a broker by way of the proxy."""
        assert isinstance(self.server, RabbitMQServer | Server)
        return self.server.url_at(self.port)

    def lose_reply(self, match: bytes) -> Fault:
        """The next request that holds `match` is carried out; its reply is lost with the connection."""
        return self._arm(Fault(match, reaches_server=True))

    def lose_request(self, match: bytes) -> Fault:
        """The next request that holds `match` is lost with the connection."""
        return self._arm(Fault(match, reaches_server=False))

    def hold_reply(self, match: bytes) -> Fault:
        """The next request that holds `match` is carried out; no reply comes, for as long as its client waits."""
        return self._arm(Fault(match, reaches_server=True, cuts=False))

    def _arm(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def fault_of(self, request: bytes) -> Fault | None:
        """The fault that this request meets. It meets each only once."""
        for fault in self._faults:
            if fault.match in request:
                self._faults.remove(fault)
                return fault
        return None


class _Connection(socketserver.BaseRequestHandler):
    """One connection of a client, and its own to the server. It ends with either side, or with a fault."""

    server: "_Listener"
    request: socket.socket

    def handle(self) -> None:
        with self.server.proxy.server.connect() as upstream:
            while self._forward(upstream):
                pass

    def _forward(self, upstream: socket.socket) -> bool:
        poll = select.poll()  # `select.select` takes no descriptor over 1,023
        for side in (self.request, upstream):
            poll.register(side, select.POLLIN)
        if any(descriptor == upstream.fileno() for descriptor, _ in poll.poll()):
            return self._reply(upstream)
        request = self.request.recv(1 << 20)
        fault = self.server.proxy.fault_of(request)
        if fault is None:
            upstream.sendall(request)
            return bool(request)
        if fault.reaches_server:
            upstream.sendall(request)
            upstream.recv(1)  # the server has answered, so it has done it
        fault.happened.set()
        if not fault.cuts:
            self.request.recv(1)
        return False

    def _reply(self, upstream: socket.socket) -> bool:
        data = upstream.recv(1 << 20)
        if not self.server.proxy.seconds_a_byte:
            self.request.sendall(data)
            return bool(data)
        for n in range(len(data)):
            self.request.sendall(data[n : n + 1])
            time.sleep(self.server.proxy.seconds_a_byte)
        return bool(data)


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.proxy = proxy
        proxy.port = self.socket.getsockname()[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Either side may be killed at any time: that is what the tests are about."""


@contextmanager
def proxy_before(server: AnyServer) -> Iterator[Proxy]:
    """A proxy that ends with the block."""
    proxy = Proxy(server)
    with _Listener(proxy) as listener:
        serving = threading.Thread(target=listener.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield proxy
        finally:
            listener.shutdown()
            serving.join()
