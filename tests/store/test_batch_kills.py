"""Batches whose workers are killed at any moment: one message follows each of them, once all members have ended."""

import json
import os
import random
from time import sleep

import pytest

from django_delayq import Batch, Send
from django_delayq.models import BatchRow, FinishMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.scale import scaled
from tests.store.emptied import until_empty
from tests.worker.processes import Site

KILLS = scaled(3)
BATCHES, MEMBERS = 6, 20
WORKERS = 2


@pytest.mark.parametrize("key", ["stamp", "stamp atomically"])
@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_one_message_follows_each_batch_whenever_workers_are_killed(
    broker: DatabaseBackend, site: Site, database: str, arguments: tuple[str, ...], key: str
) -> None:
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED"))
    workers = [site.worker(*arguments) for _ in range(WORKERS)]
    ids = []
    for _ in range(BATCHES):
        with Batch("stamp") as batch:
            batch.send_many(Send(key, n, delay=f"{chance.randrange(2000)}ms") for n in range(MEMBERS))
        ids.append(batch.id)
    for _ in range(KILLS):
        victim = workers.pop(0)
        victim.until_says("Queues:")
        sleep(chance.uniform(0, 0.5))  # what it is at then is what is tested
        victim.kill()
        workers.append(site.worker(*arguments))
    until_empty(workers, database, ReadyMessage, BatchRow)
    for worker in workers:
        worker.until_says("Queues:")  # from then on it takes signals
        assert worker.stop() == 0
    followed = FinishMessage.objects.using(database).filter(message_id__in=ids, outcome="finished")
    assert sorted(followed.values_list("message_id", flat=True)) == sorted(ids)
    for data in followed.values_list("data", flat=True):
        told = json.loads(data)
        assert (told["total"], told["finished"], told["failed"], told["cancelled"]) == (MEMBERS, MEMBERS, 0, 0)
    for row in followed:
        members = FinishMessage.objects.using(database).filter(message_id__startswith=f"{row.message_id}/")
        assert row.sent_at >= max(member.ended_at for member in members)
