"""The workers and the pauses in Redis: fields of the meta hash, and notices on the wake-up channel."""

from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.brokers.redis import pauses, queries
from django_delayq.brokers.redis.access import Access
from django_delayq.brokers.redis.client import Operation, gather, or_default, plain


class RedisPresence:
    """See `Presence` and `Heartbeats` in brokers/base.py."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._pauses: list[Pause] = []  # as last read

    def heartbeat(self, worker: WorkerInfo) -> list[Pause]:
        access = self._access
        said: list[Operation[list[Pause] | None]] = [access.ownership.announce(worker), access.layout.agree()]
        nothing: list[list[Pause] | None] = [None, None]
        told, _agreed = access.client.run(or_default(gather(said), nothing))
        if told is None:  # the next heartbeat repeats it: a node that is away must not keep a worker from the others
            access.maintenance.ask_all()
        else:
            self._pauses = told
        return self._pauses

    def leave(self, worker: str) -> None:
        self._access.run(_leave(self._access.shards.first.meta, worker))

    def workers(self) -> list[WorkerInfo]:
        return self._access.run(queries.workers(self._access.shards.first))

    def pause(self, pause: Pause) -> None:
        self._access.run(pauses.pause(self._access.shards.first, pause))

    def resume(self, queue: str | None, key: str | None) -> bool:
        return self._access.run(pauses.resume(self._access.shards.first, queue, key))

    def pauses(self) -> list[Pause]:
        self._pauses = self._access.run(or_default(pauses.pauses(self._access.shards.first), self._pauses))
        return self._pauses

    def announce_pauses(self) -> None:
        self._access.run(pauses.announce(self._access.shards.first))

    @property
    def pause_version(self) -> int:
        return self._access.waiter.pauses_heard


def _leave(meta: str, worker: str) -> Operation[None]:
    yield [plain("HDEL", meta, f"worker:{worker}")]
