"""The handlers. Each writes its start and its end into the ledger; `data` is how many ms it takes."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from django.db import DatabaseError, connection

from django_delayq import Message, delay_execute
from tests.chaos import ledger

SOON = [1]
BEAT_S = 0.25


@contextmanager
def noted(message: Message[Any]) -> Iterator[None]:
    """Note the start and the end of a run."""
    run = {"id": message.id, "token": message.token, "pids": [os.getpid(), os.getppid()]}
    key = message.key.partition("-")[0]  # of many handlers, all are alike
    ledger.write("start", key=key, attempt=message.attempt, due_ms=message.due_ms, **run)
    try:
        yield
    except BaseException:
        ledger.write("end", how="raised", **run)
        raise
    ledger.write("end", how="returned", **run)


def take(message: Message[int]) -> None:
    """Take as long as it says, and tell now and then that it is still at it: who is killed can't tell its end."""
    end = time.monotonic() + message.data / 1000
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, BEAT_S))
        if left > BEAT_S:
            ledger.write("beat", id=message.id, token=message.token, pids=[os.getpid(), os.getppid()])


def effect(message: Message[int]) -> None:
    """Write a row into the store's database."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO chaos_effect (message_id, token) VALUES (%s, %s)", [message.id, message.token])


@delay_execute(key="plain", backoff=SOON)
def plain(message: Message[int]) -> None:
    with noted(message):
        take(message)


@delay_execute(key="slow", backoff=SOON)
def slow(message: Message[int]) -> None:
    with noted(message):
        take(message)


@delay_execute(key="async", backoff=SOON)
async def aplain(message: Message[int]) -> None:
    with noted(message):
        await asyncio.sleep(message.data / 1000)


@delay_execute(key="write", backoff=SOON, max_attempts=100)
def write(message: Message[int]) -> None:
    """Write a row, which commits at once."""
    with noted(message):
        effect(message)


@delay_execute(key="exact", backoff=SOON, max_attempts=100, atomic=True)
def exact(message: Message[int]) -> None:
    """Write a row in the transaction that ends the message."""
    with noted(message):
        effect(message)
        take(message)


@delay_execute(key="long exact", backoff=SOON, max_attempts=20, atomic=True)
def long_exact(message: Message[int]) -> None:
    """Do as `exact` for longer than it takes until the lease is renewed."""
    exact(message)


@delay_execute(key="deadlock", backoff=SOON, max_attempts=100, atomic=True)
def deadlock(message: Message[int]) -> None:
    """Catch the error of a deadlock, which on MariaDB has rolled back the whole transaction, and go on."""
    with noted(message):
        effect(message)
        with suppress(DatabaseError), connection.cursor() as cursor:
            accounts = Random(message.id).sample((1, 2), 2) if message.attempt <= 2 else (1, 2)  # so it ends soon
            for account in accounts:
                cursor.execute("UPDATE chaos_account SET balance = balance + 1 WHERE id = %s", [account])
                time.sleep(0.05)


@delay_execute(key="leak", backoff=SOON, max_attempts=100)
def leak(message: Message[int]) -> None:
    """Leave a transaction open, at the first attempt: what is next in this thread must not become a part of it."""
    with noted(message):
        if message.attempt == 1:
            connection.set_autocommit(False)
            effect(message)


@delay_execute(key="once", at_most_once=True)
def once(message: Message[int]) -> None:
    with noted(message):
        take(message)


@delay_execute(key="single", max_concurrency=1, backoff=SOON)
def single(message: Message[int]) -> None:
    with noted(message):
        take(message)


@delay_execute(key="flaky", backoff=SOON, max_attempts=4)
def flaky(message: Message[int]) -> None:
    """Fail twice, with what not every table can hold, and then succeed."""
    with noted(message):
        if message.attempt <= 2:
            raise ValueError(f"attempt {message.attempt} went up in \N{FIRE}")


@delay_execute(key="doomed", backoff=SOON, max_attempts=2)
def doomed(message: Message[int]) -> None:
    """Fail each time."""
    with noted(message):
        raise ValueError("as always")


def _one_of_many(message: Message[int]) -> None:
    with noted(message):
        take(message)


for number in range(int(os.environ.get("CHAOS_MANY", "0"))):  # a site has many handlers, most of them idle
    delay_execute(key=f"many-{number}", backoff=SOON)(_one_of_many)
