"""A process that sends, cancels and reschedules, and writes what it asked for and was told into the ledger.

`python -m tests.chaos.sender NAME SEED SECONDS RATE KEY,KEY MOST`: so many moves a second, with handlers of these
keys and delays of at most so many seconds.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import django
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction

from django_delayq import (
    BrokerRefused,
    DelayqError,
    Send,
    cancel_delay_messages,
    reschedule_delay_messages,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.signals import message_sent
from tests.chaos import ledger

WEIGHTS = {"plain": 30, "async": 10, "write": 15, "exact": 15, "once": 10, "single": 3, "flaky": 6, "doomed": 3,
           "many": 15, "slow": 2, "deadlock": 4, "leak": 2, "long exact": 1}  # fmt: skip
MOST_MS = {"slow": 7000, "long exact": 7000, "once": 300, "single": 300, "exact": 50}
"""How long a handler takes at most; others take 20 ms."""
RECENT = 30
"""So many of the last ids are sent again, cancelled and rescheduled."""


FAILURES = (DelayqError, DatabaseError, InterfaceError)
"""What a move may end with when something is away."""


class Sender:
    """Sends under ids of its own, so that what happens to an id happens in order."""

    def __init__(self, name: str, draw: Random, keys: Sequence[str], most_s: float) -> None:
        self.name = name
        self.most_s = most_s
        """The longest delay."""
        self.draw = draw
        self.keys = keys
        self.many = int(os.environ["CHAOS_MANY"])
        self.queues = int(os.environ["CHAOS_QUEUES"])
        self.ids: list[str] = []
        self.is_stored = settings.DELAYQ["default"]["STORE"] is not None
        self._numbers = itertools.count(1)
        self._asked: dict[str, str] = {}
        """The ids of what was asked for and has no answer yet, by number."""
        self._told: dict[str, dict[str, Any]] = {}
        """What was told of each."""
        self._rolls_back = False
        """Whether what fails now, fails with all that was asked for."""
        message_sent.connect(self._hear, weak=False)

    def move(self) -> None:
        """Make a move, drawn by chance."""
        moves = {
            self.send: 60,
            self.send_in_transaction: 12,
            self.send_many: 3,
            self.send_again: 10,
            self.reschedule: 6,
            self.cancel: 6,
            self.roll_back: 3,
            self.catch_a_wrong_argument: 2,
        }
        (move,) = self.draw.choices(list(moves), list(moves.values()))
        move()

    def send(self) -> None:
        with self._answers():
            self._send(self._new_id())

    def send_in_transaction(self) -> None:
        with self._in_transaction():
            for _ in range(self.draw.randint(1, 3)):
                self._send(self._new_id())
            if self.is_stored:
                self._reschedule(self._recent_id())

    def send_many(self) -> None:
        with self._answers():
            numbers, sends = [], []
            for _ in range(20):
                id, delay = self._new_id(), self._delay()
                numbers.append(self._ask("send", id, key="plain", delay=delay))
                sends.append(Send("plain", 1, id=id, delay=delay, queue=self._queue()))
            if send_delay_messages(sends).created == len(sends):
                self._told = {number: {"counted": True} for number in numbers}

    def send_again(self) -> None:
        """Send an id that may wait, run, or have ended."""
        with self._answers():
            self._send(self._recent_id(), self.draw.choice(["keep", "replace", "earliest", "latest"]))

    def reschedule(self) -> None:
        with self._answers():
            self._reschedule(self._recent_id())

    def cancel(self) -> None:
        with self._answers():
            id = self._recent_id()
            number = self._ask("cancel", id)
            self._told[number] = {"counted": cancel_delay_messages(id) == 1}

    def roll_back(self) -> None:
        """Send in a transaction that is rolled back: nothing was sent."""
        id = self._new_id()
        with self._answers(), transaction.atomic():
            self._send(id)
            transaction.set_rollback(True)
            self._rolls_back = True
        self.ids.remove(id)

    def catch_a_wrong_argument(self) -> None:
        """Go on with a transaction after an error that has nothing to do with it."""
        with self._in_transaction():
            self._send(self._new_id())
            with suppress(ValueError):
                reschedule_delay_messages(self.ids[-1], delay=-1)

    def _send(self, id: str, on_conflict: Any = "keep") -> None:
        key, delay = self.draw.choices(self.keys, [WEIGHTS[key] for key in self.keys])[0], self._delay()
        number = self._ask("send", id, key=key, delay=delay)
        took_ms = self.draw.randint(1, MOST_MS.get(key, 20))
        handler = f"{key}-{self.draw.randrange(self.many)}" if key == "many" else key
        sent = send_delay_message(handler, took_ms, id=id, delay=delay, on_conflict=on_conflict, queue=self._queue())
        if sent.created is not None:
            self._told[number] = {"counted": sent.created, "due_ms": sent.due_ms}

    def _reschedule(self, id: str) -> None:
        delay = self._delay()
        number = self._ask("reschedule", id, delay=delay)
        self._told[number] = {"counted": reschedule_delay_messages(id, delay=delay) == 1}

    def _ask(self, verb: str, id: str, **fields: Any) -> str:
        number = f"{self.name}:{next(self._numbers)}"
        self._asked[number] = id
        ledger.write("ask", number=number, verb=verb, id=id, **fields)
        return number

    def _hear(self, *, id: str, created: bool, due_ms: int, **_: object) -> None:
        """Hear of a send that waited for its commit, where there is no store."""
        for number, asked in self._asked.items():
            if asked == id:
                self._told.setdefault(number, {"counted": created, "due_ms": due_ms})

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Write what became of all that was asked for within the block."""
        self._asked, self._told, self._rolls_back = {}, {}, False
        ok: bool | None = None
        try:
            yield
            ok = not self._rolls_back
        except (ValueError, BrokerRefused):
            ok = False
            raise
        except FAILURES:
            ok = False if self._rolls_back else None
            raise
        finally:
            for number in self._asked:
                is_known = ok is False or number in self._told
                ledger.write("answer", number=number, ok=ok if is_known else None, **self._told.get(number, {}))

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        """Do so in a transaction. If it fails before its commit, nothing of it was done; later, nobody knows."""
        with self._answers(), transaction.atomic():
            self._rolls_back = self.is_stored
            yield
            self._rolls_back = False

    def _new_id(self) -> str:
        self.ids.append(f"{self.name}-{next(self._numbers)}")
        return self.ids[-1]

    def _recent_id(self) -> str:
        return self.draw.choice(self.ids[-RECENT:]) if self.ids else self._new_id()

    def _queue(self) -> str:
        return f"q{self.draw.randrange(self.queues)}"

    def _delay(self) -> float:
        return self.draw.choice([0, 0, round(self.draw.random(), 2), round(self.most_s * self.draw.random(), 2)])


def main(name: str, seed: str, seconds: str, rate: str, keys: str, most_s: str) -> None:
    """Make moves for so long."""
    sender = Sender(name, Random(seed), keys.split(","), float(most_s))
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            sender.move()
        except FAILURES as failure:
            sys.stderr.write(f"{failure!r}\n")
            connection.close_if_unusable_or_obsolete()
        time.sleep(sender.draw.expovariate(float(rate)))


if __name__ == "__main__":
    django.setup()
    main(*sys.argv[1:])
