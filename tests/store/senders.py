"""`python -m tests.store.senders COUNT SEED`: sends in transactions, from 8 processes, of which many roll back or die.

Each send is written down as a group of its name in the same transaction, so that it was committed if that is there.
"""

import os
import random
import signal
import sys

import django
from django.db import connection, transaction

PROCESSES = 8
CHUNK = 50
ENDS = {"commit": 70, "roll back": 20, "roll back a savepoint": 8, "die before the commit": 1, "die after it": 1}


class RolledBack(Exception):
    """What ends a transaction here."""


def main(count: int, seed: int) -> None:
    """Send `count` messages, in processes that send up to `CHUNK` each."""
    chunks = iter(range(0, count, CHUNK))
    running: set[int] = set()
    for start in chunks:
        if len(running) == PROCESSES:
            running.discard(os.wait()[0])
        running.add(_fork(range(start, min(start + CHUNK, count)), seed))
    for _ in running:
        os.wait()


def _fork(numbers: range, seed: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    chance = random.Random(f"{seed} {numbers.start}")
    if chance.random() < 0.25:
        # The default action of this signal ends the process at once, wherever it is.
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.5))
    for number in numbers:
        send(f"{number}", chance)
    os._exit(0)


def send(name: str, chance: random.Random) -> None:
    """Send one message in a transaction, which ends as chance has it."""
    from django.contrib.auth.models import Group

    from tests.worker.site.delayed import record

    (end,) = chance.choices(list(ENDS), list(ENDS.values()))
    delay = chance.choice([0, 0.1, 1, 3])
    try:
        with transaction.atomic():
            if end == "die after it":
                transaction.on_commit(_die)  # before the broker is told
            Group.objects.create(name=name)
            if end == "roll back a savepoint":
                _send_and_roll_back(f"{name} rolled back", delay)
            record.send(name, id=name, delay=delay)
            if end == "die before the commit":
                _die()
            if end == "roll back":
                raise RolledBack
    except RolledBack:
        pass


def _send_and_roll_back(name: str, delay: float) -> None:
    from tests.worker.site.delayed import record

    with transaction.atomic():
        record.send(name, id=name, delay=delay)
        transaction.set_rollback(True)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    django.setup()
    connection.close()
    main(int(sys.argv[1]), int(sys.argv[2]))
