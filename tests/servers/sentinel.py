"""A primary of Redis, its replica, and a sentinel that makes the replica the primary when the other is gone."""

from urllib.parse import quote

import redis

from tests.servers.cluster import until
from tests.servers.process import PrivateServer, free_port
from tests.servers.redis import Server

NAME = "shop"
PASSWORD = "sentinel pass/word"


class SentinelServer(PrivateServer):
    """One sentinel, which asks for a password and decides alone, half a second after it last heard of the primary."""

    READY = "+monitor master"

    def __init__(self, binary: str, primary_port: int) -> None:
        super().__init__()
        self.binary = binary
        self.port = free_port()
        (self.directory / "sentinel.conf").write_text(
            f"""bind 127.0.0.1
port {self.port}
requirepass "{PASSWORD}"
sentinel monitor {NAME} 127.0.0.1 {primary_port} 1
sentinel down-after-milliseconds {NAME} 500
sentinel failover-timeout {NAME} 5000
"""
        )
        self.start()

    def command(self) -> list[str]:
        """The program and its arguments."""
        return [self.binary, str(self.directory / "sentinel.conf"), "--sentinel"]


class Failover:
    """The three of them. `location` is theirs for the broker."""

    def __init__(self, binary: str) -> None:
        self.primary = Server(binary, port=free_port(), repl_diskless_sync_delay=0)
        self.replica = Server(binary, port=free_port(), replicaof=f"127.0.0.1 {self.primary.options['port']}")
        until(self._follows)  # a sentinel asks the primary for its replicas at its start, and then in ten seconds
        self.sentinel = SentinelServer(binary, int(self.primary.options["port"]))

    def location(self, password: str = PASSWORD, name: str = NAME) -> str:
        """LOCATION, with a sentinel in front that is never there."""
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{self.sentinel.port}"
        return f"redis+sentinel://{hosts}/{name}/0?sentinel_password={quote(password, safe='')}"

    def fail_over(self) -> None:
        """The primary dies, and the replica has all that it had; the sentinel knows of it."""
        until(self._is_fit)
        with self.primary.client() as client:
            client.set("other", 1)  # WAIT waits for what its own connection has written
            assert client.wait(1, 10_000) == 1
        self.primary.kill()

    def wait_for_the_next(self) -> None:
        """Wait until the replica is the primary."""
        until(self._is_promoted)

    def _follows(self) -> bool:
        with self.primary.client() as client:
            return bool(client.info("replication").get("slave0", {}).get("state") == "online")

    def _is_fit(self) -> bool:
        with redis.Redis(port=self.sentinel.port, password=PASSWORD, protocol=2) as client:
            known = client.sentinel_slaves(NAME)
        return any(replica["master-link-status"] == "ok" for replica in known)

    def _is_promoted(self) -> bool:
        with self.replica.client() as client:
            try:
                return bool(client.role()[0] == b"master")
            except redis.ConnectionError:  # the sentinel ends all connections then
                return False

    def close(self) -> None:
        """End them for good."""
        for server in (self.sentinel, self.replica, self.primary):
            server.close()
