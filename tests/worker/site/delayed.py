"""The handlers. `tell` reports to the test; `hold` does, and then waits for its leave."""

import asyncio
import atexit
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.backends.signals import connection_created

from django_delayq import Message, Retry, delay_execute
from django_delayq.signals import message_finished, message_started
from django_delayq.store.database import Database
from tests.store.skewed import FastClock

leak: list[bytes] = []


def tell(message: Message[Any], what: str = "ran") -> socket.socket:
    """Say "<what> <id> <attempt> <pid>" to the test that sent the message."""
    return say(what, message.id, message.attempt)


def say(what: str, id: str, attempt: int) -> socket.socket:
    """The same, for who has no message."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["DELAYQ_TEST_LINE"])
    line.sendall(f"{what} {id} {attempt} {os.getpid()}\n".encode())
    return line


def freeze(id: str, attempt: int, **_: object) -> None:
    """Stop this process as it is, until the test lets it go on; but not while it holds a lock of the database.

    One that is frozen with the write lock of SQLite, or in a transaction on MariaDB, holds up others all the while.
    """
    say("freezes", id, attempt).close()
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(60)  # from here on another thread gets its turn only while this one sleeps
    while _is_in_the_database():
        time.sleep(0.001)
    # To this thread: of one that is to the process another may take notice first, and this one run on for a while.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    sys.setswitchinterval(switch_s)


def _is_in_the_database() -> bool:
    """Return whether any thread is at a statement, or in a transaction, of the store's."""
    for innermost in sys._current_frames().values():
        if any(frame.f_globals["__name__"] == Database.__module__ for frame, _ in traceback.walk_stack(innermost)):
            return True
    return False


match os.environ.get("DELAYQ_TEST_FREEZE"):  # what a worker is about to do when it is frozen
    case "start":
        message_started.connect(freeze, weak=False)
    case "settle":
        message_finished.connect(freeze, weak=False)

if "DELAYQ_TEST_CLOCK" in os.environ:
    connection_created.connect(FastClock(Path(os.environ["DELAYQ_TEST_CLOCK"])).use, weak=False)


@delay_execute(key="run")
def run(message: Message[str]) -> None:
    tell(message).close()


@delay_execute(key="second")
def second(message: Message[str]) -> None:
    """Kills the process, unless it is the first message that this runs there."""
    with tell(message):
        leak.append(b"")
    if len(leak) > 1:
        os.kill(os.getpid(), signal.SIGKILL)


@delay_execute(key="close", max_attempts=1)
def close(message: Message[dict[str, int]]) -> None:
    """Fails for what is no number of an order."""
    if message.data["order"] < 1:
        raise ValueError(f"there is no order {message.data['order']}")
    tell(message).close()


@delay_execute(key="arun")
async def arun(message: Message[str]) -> None:
    tell(message).close()


@delay_execute(key="collect")
def collect(message: Message[str]) -> None:
    """Tells whether collections of garbage leave out what was there before."""
    tell(message, "frozen" if gc.get_freeze_count() else "unfrozen").close()


@delay_execute(key="hold")
def hold(message: Message[str]) -> None:
    with tell(message, "holds") as line:
        line.recv(1)
    tell(message).close()


@delay_execute(key="many", batch=3, wait="1s")
def many(messages: list[Message[str]]) -> None:
    """Do what `hold` does, for each of many."""
    lines = [tell(message, "holds") for message in messages]
    for line in lines:
        with line:
            line.recv(1)
    for message in messages:
        tell(message).close()


@delay_execute(key="poisoned", batch=3, wait="1s", concurrency=1)
def poisoned(messages: list[Message[str]]) -> None:
    """Die of a message that is poison, however many others are here. Tells how many there are."""
    for message in messages:
        tell(message, f"of{len(messages)}").close()
    if any(message.data == "poison" for message in messages):
        os.kill(os.getpid(), signal.SIGKILL)


@delay_execute(key="stuck", batch=3, wait="1s", timeout="1s", max_attempts=1)
def stuck(messages: list[Message[str]]) -> None:
    for message in messages:
        tell(message, "sticks").close()
    time.sleep(600)


@delay_execute(key="far")
def far(message: Message[str]) -> None:
    """Tell how far it is, and do what `hold` does."""
    message.progress(0.4, "12 of 30")
    hold(message)


@delay_execute(key="heed")
def heed(message: Message[str]) -> None:
    """Stop once it is told to, or go on for ever."""
    tell(message, "holds").close()
    while True:
        message.ensure_not_cancelled()
        time.sleep(0.01)


@delay_execute(key="grip", concurrency=1)
def grip(message: Message[str]) -> None:
    """Do what `hold` does, one at a time in each worker."""
    hold(message)


if "DELAYQ_TEST_LIMITS" in os.environ:  # not every broker can keep them

    @delay_execute(key="only", max_concurrency=1)
    def only(message: Message[str]) -> None:
        hold(message)

    @delay_execute(key="pair", max_concurrency=2)
    def pair(message: Message[str]) -> None:
        (seize if message.data == "seize" else hold)(message)

    @delay_execute(key="burst", rate_limit="1/d", rate_key="{}", burst=10)
    def burst(message: Message[str]) -> None:
        hold(message)

    @delay_execute(key="each", max_concurrency=1, concurrency_key="{}")
    def each(message: Message[str]) -> None:
        hold(message)


@delay_execute(key="brisk")
def brisk(message: Message[str]) -> None:
    """Known as fast, and then it is not: told to hold, it does as `hold`, and told to seize as `seize`."""
    if message.data == "hold":
        hold(message)
    elif message.data == "seize":
        seize(message)


@delay_execute(key="ahold")
async def ahold(message: Message[str]) -> None:
    line = tell(message, "holds")
    reader, writer = await asyncio.open_unix_connection(sock=line)
    await reader.read(1)
    writer.close()
    tell(message).close()


@delay_execute(key="crowd", concurrency=500)
async def crowd(message: Message[str]) -> None:
    await ahold(message)


@delay_execute(key="journal")
def journal(message: Message[str]) -> None:
    """Write "<id> <lateness in ms>" at the start and "<id>" at the end, as cheaply as can be, beside the line."""
    journal = os.open(f"{os.environ['DELAYQ_TEST_LINE']}.journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, f"{message.id} {message.lateness.total_seconds() * 1000:.0f}\n".encode())
    os.write(journal, f"{message.id}\n".encode())
    os.close(journal)


@delay_execute(key="trace")
def trace(message: Message[str]) -> None:
    """Write "<id> <pid> <due in ms> <start in ns>", by the machine's clock: that of its Redis too."""
    started_ns = time.time_ns()
    traces = os.open(f"{os.environ['DELAYQ_TEST_LINE']}.traces", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(traces, f"{message.id} {os.getpid()} {message.due_ms} {started_ns}\n".encode())
    os.close(traces)


@delay_execute(key="spin", max_attempts=1)
def spin(message: Message[str]) -> None:
    tell(message, "spins").close()
    while True:
        pass


@delay_execute(key="terminate")
def terminate(message: Message[str]) -> None:
    """SIGTERM, given by the system to this thread and not to the main one."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    tell(message).close()


@delay_execute(key="die")
def die(message: Message[str]) -> None:
    tell(message, "dies").close()
    os.kill(os.getpid(), signal.SIGKILL)


@delay_execute(key="grow")
def grow(message: Message[str]) -> None:
    """Never give back 200 MiB."""
    leak.append(b"x" * (200 << 20))
    tell(message).close()


@delay_execute(key="mutter")
def mutter(message: Message[str]) -> None:
    """Print what is not written at once, as into a pipe; and have something called at the end of the process."""
    sys.stdout.write(f"muttered {message.id}\n")
    atexit.register(lambda: tell(message, "leaves").close())
    tell(message).close()


@delay_execute(key="fork")
def fork(message: Message[str]) -> None:
    process = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
    process.start()
    process.terminate()
    process.join()
    tell(message).close()


def split(message: Message[str]) -> None:
    """Fork, and leave the handler in both processes."""
    process = os.fork()
    if process:
        _, status = os.waitpid(process, 0)
        tell(message, f"forked-{os.waitstatus_to_exitcode(status)}").close()


delay_execute(key="split")(split)


@delay_execute(key="asplit")
async def asplit(message: Message[str]) -> None:
    split(message)


@delay_execute(key="seize")
def seize(message: Message[str]) -> None:
    """Hold the interpreter's lock: no other thread of the process runs."""
    with tell(message, "seizes"):
        ctypes.PyDLL(None).sleep(100)


@delay_execute(key="garble")
def garble(message: Message[str]) -> None:
    """Say to the parent what is no answer."""
    os.write(int(sys.argv[1]), b"{]\n")
    tell(message, "garbles").close()


@delay_execute(key="abort")
def abort(message: Message[str]) -> None:
    """Crash as C code does."""
    os.abort()


@delay_execute(key="record")
def record(message: Message[str]) -> None:
    """Add a line to a file."""
    with open(os.environ["DELAYQ_TEST_RECORD"], "ab", buffering=0) as file:
        file.write(f"{message.data}\n".encode())


@delay_execute(key="record slowly")
def record_slowly(message: Message[str]) -> None:
    """Add a line to a file after a while, in which the message may be sent again."""
    threading.Event().wait(0.02)
    record(message)


@delay_execute(key="record, too")
def record_too(message: Message[str]) -> None:
    record(message)


@delay_execute(key="stamp")
def stamp(message: Message[Any]) -> None:
    """Add the id, the token and the time to a file."""
    with open(os.environ["DELAYQ_TEST_RECORD"], "ab", buffering=0) as file:
        file.write(f"{message.id} {message.token} {time.time()}\n".encode())


@delay_execute(key="stamp atomically", atomic=True)
def stamp_atomically(message: Message[Any]) -> None:
    stamp(message)


@delay_execute(key="leave", max_attempts=1)
def leave(message: Message[str]) -> None:
    """Leave a transaction open."""
    transaction.atomic().__enter__()
    tell(message, "leaves").close()


@delay_execute(key="report open")
def report_open(message: Message[str]) -> None:
    """Tell whether its connection is in a transaction."""
    tell(message, "inside" if connection.in_atomic_block else "outside").close()


@delay_execute(key="credit", atomic=True)
def credit(message: Message[int]) -> None:
    """Put one more on the account."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE account SET balance = balance + 1")


@delay_execute(key="credit and die", atomic=True)
def credit_and_die(message: Message[int]) -> None:
    """Killed right after the commit."""
    credit(message)
    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))


@delay_execute(key="credit many", batch=3, wait="500ms", atomic=True)
def credit_many(messages: list[Message[int]]) -> dict[str, Exception]:
    """Add a row for each message; the last one of three is tried again, once.

    Killed at the step of which they are: a statement, the commit, or right after that.
    """
    if str(messages[0].data) == os.environ["DELAYQ_TEST_DIES_AT"]:
        die_at(messages[0].data)
    with connection.cursor() as cursor:
        for message in messages:
            cursor.execute("INSERT INTO credits VALUES (%s)", [message.id])
    return {message.id: Retry(0) for message in messages if message.id.endswith(":2") and message.attempt == 1}


def die_at(step: int) -> None:
    """Have this process killed before a statement in the transaction, or its commit, or else right after the commit."""
    steps = count(1)

    def take() -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(execute: Callable[..., Any], *statement: Any) -> Any:
        take()
        return execute(*statement)

    def commit(commit: Callable[[], None] = connection.commit) -> None:
        take()
        commit()

    connection.execute_wrappers.insert(0, before)  # the last is taken away when the handler returns
    connection.commit = commit  # type: ignore[method-assign]
    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))


@delay_execute(key="freeze")
def freeze_in_handler(message: Message[int]) -> None:
    """Frozen in the middle, in a worker that is to be."""
    if os.environ.get("DELAYQ_TEST_FREEZE") == "run on":
        freeze(message.id, message.attempt)
    tell(message).close()


@delay_execute(key="once", at_most_once=True)
def once(message: Message[int]) -> None:
    """Add a line to a file, and go on for a while: long enough to be killed at it."""
    with open(os.environ["DELAYQ_TEST_RECORD"], "ab", buffering=0) as file:
        file.write(f"{message.data}\n".encode())
    threading.Event().wait(0.01)
