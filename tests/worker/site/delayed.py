"""The handlers. `tell` reports to the test; `hold` does, and then waits for its leave."""

import asyncio
import os
import signal
import socket

from django_delayq import Message, delay_execute


def tell(message: Message[str], what: str = "ran") -> socket.socket:
    """Say "<what> <id> <attempt> <pid>" to the test that sent the message."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["DELAYQ_TEST_LINE"])
    line.sendall(f"{what} {message.id} {message.attempt} {os.getpid()}\n".encode())
    return line


@delay_execute(key="run")
def run(message: Message[str]) -> None:
    tell(message).close()


@delay_execute(key="arun")
async def arun(message: Message[str]) -> None:
    tell(message).close()


@delay_execute(key="hold")
def hold(message: Message[str]) -> None:
    with tell(message, "holds") as line:
        line.recv(1)
    tell(message).close()


@delay_execute(key="ahold")
async def ahold(message: Message[str]) -> None:
    line = tell(message, "holds")
    reader, writer = await asyncio.open_unix_connection(sock=line)
    await reader.read(1)
    writer.close()
    tell(message).close()


@delay_execute(key="spin", max_attempts=1)
def spin(message: Message[str]) -> None:
    tell(message, "spins").close()
    while True:
        pass


@delay_execute(key="die")
def die(message: Message[str]) -> None:
    tell(message, "dies").close()
    os.kill(os.getpid(), signal.SIGKILL)
