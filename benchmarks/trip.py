"""Count the files of the package that a send, its commit and a drain enter, and the moves between files."""

import io
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from django.core.management import call_command
from django.db import transaction

import django_delayq
from benchmarks.delayed import noop
from benchmarks.rates import ROUNDS
from benchmarks.result import Result, at_most
from benchmarks.site import DATA
from benchmarks.stored_site import stored_site
from django_delayq.brokers import get_backend

PACKAGE = Path(django_delayq.__file__).parent
SEND, COMMIT, DRAIN = "a send in a transaction", "its commit", "a drain of one message"
MOST_FILES = {SEND: 9, COMMIT: 8, DRAIN: 48}
MOST_MOVES = {DRAIN: 620}

Moves = list[str]
"""The file that each call from another file entered, in order. Each such call is a move."""


def run() -> list[Result]:
    """Return the numbers of files entered and of moves, as medians of the rounds. Print the files too."""
    with stored_site() as site:
        _round(site.using)  # imports, connects and fills caches
        rounds = [_round(site.using) for _ in range(ROUNDS)]
    results = []
    for name, most in MOST_FILES.items():
        moves = sorted((each[name] for each in rounds), key=len)[ROUNDS // 2]
        _show(name, moves)
        results.append(at_most(f"{name}: files entered", len(set(moves)), most, "files", f"{len(moves):,} moves"))
        if name in MOST_MOVES:
            results.append(at_most(f"{name}: moves between files", len(moves), MOST_MOVES[name], "moves"))
    return results


def _round(using: str) -> dict[str, Moves]:
    get_backend().presence.workers()  # connects: a worker that ends closes what its process has open
    with ExitStack() as block:
        block.enter_context(transaction.atomic(using=using))
        sent = _moves_of(lambda: noop.send(DATA))
        committed = _moves_of(block.close)
    return {SEND: sent, COMMIT: committed, DRAIN: _moves_of(_drain)}


def _drain() -> None:
    call_command("run_delayq", "--drain", verbosity=0, stdout=io.StringIO())


def _moves_of(work: Callable[[], object]) -> Moves:
    """Do some work, and return the moves that it made, including those in threads that it started."""
    moves: Moves = []
    package = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(package):
            caller = frame.f_back
            if caller is None or caller.f_code.co_filename != file:
                moves.append(file[len(package) :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return moves


def _show(name: str, moves: Moves) -> None:
    """Print the files in the order in which they were first entered, and how often each was entered."""
    lines = [f"{count:6,}  {file}\n" for file, count in Counter(moves).items()]
    sys.stdout.write(f"{name}:\n{''.join(lines)}\n")
