"""A Redis Cluster of private servers: three primaries, and replicas if asked for."""

import random
import socket
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.servers.redis import Server

BEGINS = (0, 8_192, 13_107)
"""The first slot of each primary: so that the first three shards of the prefix "delayq" are on a node each."""
PRIMARIES = len(BEGINS)
START_S = 60
_random = random.SystemRandom()  # the tests in other processes have the same seed


class ClusterServers:
    """The nodes of one cluster. `location` is theirs for the broker."""

    def __init__(self, binary: str, *, replicas: int = 0, tls: bool = False, **options: str | int) -> None:
        """The first `replicas` primaries have a replica each. With `tls` nothing else is spoken over TCP."""
        common: dict[str, str | int] = {
            "bind": "127.0.0.1",
            "cluster_enabled": "yes",
            "cluster_require_full_coverage": "no",
            "cluster_node_timeout": 2000,
            "cluster_replica_validity_factor": 0,
            "repl_diskless_sync_delay": 0,
        }
        if tls:
            common["tls_cluster"] = "yes"
        self._port = "tls_port" if tls else "port"
        self.nodes: list[Server] = []
        try:
            for _ in range(PRIMARIES + replicas):
                self.nodes.append(Server(binary, **{**common, **options, self._port: _free_port()}))
            self.primaries, self.replicas = self.nodes[:PRIMARIES], self.nodes[PRIMARIES:]
            self._join()
        except BaseException:
            self.close()
            raise

    @property
    def location(self) -> str:
        """LOCATION, with two of them."""
        return "redis+cluster://" + ",".join(self.addresses[:2])

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each node."""
        return [f"127.0.0.1:{node.options[self._port]}" for node in self.nodes]

    def owner(self, key: str) -> Server:
        """The primary that has the slot of a key by the slots given at the start."""
        return self.primaries[bisect(BEGINS, key_slot(key.encode())) - 1]

    def flush(self) -> None:
        """Empty them all."""
        for node in self.primaries:
            with node.client() as client:
                client.flushall()

    def slot(self, key: str) -> int:
        """The slot of a key."""
        return key_slot(key.encode())

    @contextmanager
    def moving(self, slot: int, source: Server, target: Server) -> Iterator[None]:
        """A slot moves (ASK, TRYAGAIN) within the block, and has moved after it; where that fails, it stays."""
        with source.client() as here, target.client() as there:
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(here))
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(there))
            try:
                yield
            except BaseException:
                _let_stay(slot, here, there)
                raise
            for node in [target, *(node for node in self.primaries if node is not target)]:
                with node.client() as client:
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", _id(there))

    @contextmanager
    def moving_nothing(self, slot: int, source: Server, target: Server) -> Iterator[None]:
        """A slot begins to move, and stays where it is."""
        with source.client() as here, target.client() as there:
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(here))
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(there))
            try:
                yield
            finally:
                _let_stay(slot, here, there)

    def move_keys(self, slot: int, source: Server, target: Server) -> None:
        """Move what is in the slot."""
        with source.client() as here:
            while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                here.execute_command("MIGRATE", "127.0.0.1", target.options["port"], "", 0, 5000, "KEYS", *keys)

    def wait_until_whole(self) -> None:
        """Wait until every node says that all is well."""
        clients = [node.client() for node in self.nodes]
        until(lambda: all(_is_whole(client) for client in clients))
        for client in clients:
            client.close()

    def close(self) -> None:
        """End them for good."""
        for node in self.nodes:
            node.close()

    def _join(self) -> None:
        clients = [node.client() for node in self.nodes]
        for i, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for i, client in enumerate(clients[:PRIMARIES]):
            client.execute_command("CLUSTER", "ADDSLOTS", *_slots(i))
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].options[self._port])
        until(lambda: all(_info(client)["cluster_known_nodes"] == str(len(clients)) for client in clients))
        for primary, replica in zip(clients, clients[PRIMARIES:], strict=False):
            until(partial(_accepts, replica, _id(primary)))
        until(lambda: all(_is_whole(client) for client in clients))
        until(lambda: all(_follows(client) for client in clients[PRIMARIES:]))
        for client in clients:
            client.close()


def _let_stay(slot: int, *nodes: redis.Redis) -> None:
    for client in nodes:
        client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")


def until(holds: Callable[[], bool], patience_s: float = START_S) -> None:
    """Wait for what the nodes agree on by themselves."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _accepts(replica: redis.Redis, primary_id: str) -> bool:
    try:
        replica.execute_command("CLUSTER", "REPLICATE", primary_id)
    except redis.ResponseError:  # it has not heard of it yet
        return False
    return True


def _is_whole(client: redis.Redis) -> bool:
    said = _info(client)
    return said["cluster_state"] == "ok" and said["cluster_slots_ok"] == str(REDIS_CLUSTER_HASH_SLOTS)


def _follows(replica: redis.Redis) -> bool:
    return bool(replica.info("replication").get("master_link_status") == "up")


def _slots(nth: int) -> Sequence[int]:
    return range(*(*BEGINS, REDIS_CLUSTER_HASH_SLOTS)[nth : nth + 2])


def _info(client: redis.Redis) -> dict[str, str]:
    said = client.execute_command("CLUSTER", "INFO")
    return dict(said) if isinstance(said, dict) else dict(line.split(":", 1) for line in said.decode().split())


def _id(client: redis.Redis) -> str:
    said = client.execute_command("CLUSTER", "MYID")
    return said.decode() if isinstance(said, bytes) else str(said)


def _free_port() -> int:
    """One whose bus, 10,000 above, is free too."""
    while True:
        port = _random.randint(20_000, 22_700)  # and the bus is below the ports of connections
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
