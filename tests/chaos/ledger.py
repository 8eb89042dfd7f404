"""The ledger: a plain file, to which every process of a round appends what it asked for, began, ended or did.

It stands outside of the system under test: no database, no Redis, no code of the package. A line is one JSON object,
written at once, so that a process which is killed leaves whole lines. Times are of the machine: `at` by its monotonic
clock, which all processes share, in seconds, and `wall` in ms.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

VARIABLE = "CHAOS_LEDGER"
"""The environment variable that names the file."""


def write(what: str, **fields: Any) -> None:
    """Append a line."""
    line = {"what": what, "at": time.monotonic(), "wall": time.time() * 1000, **fields}
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def skew_ms() -> int:
    """Return how far the database's clock is put ahead of the machine's."""
    try:
        return int(Path(f"{os.environ[VARIABLE]}.skew").read_text())
    except FileNotFoundError:
        return 0


def put_clock(ms: int) -> None:
    """Put the database's clock so far ahead, for every process at its next statement."""
    path = Path(f"{os.environ[VARIABLE]}.skew")
    Path(f"{path}.new").write_text(str(ms))
    Path(f"{path}.new").replace(path)
    write("clock", ms=ms)


@dataclass(frozen=True)
class PermitRequest:
    """A send, reschedule or cancel of one id, and its answer.

    `ok` is True where it was accepted (and committed), False where it surely was not, None where nobody knows. `delay`
    is in seconds. `counted` is True where the answer says that the message was created, rescheduled or cancelled.
    """

    id: str
    verb: str
    at: float = 0.0
    wall: float = 0.0
    key: str = "plain"
    delay: float = 0.0
    ok: bool | None = None
    counted: bool = False
    due_ms: int | None = None
    answered: float = float("inf")

    @property
    def may_send(self) -> bool:
        """Return whether there may be a message because of it."""
        return self.verb == "send" and (self.ok is None or (self.ok and self.counted))


@dataclass(frozen=True)
class Run:
    """One run of a handler. `until` is when it was last seen at it; `how` is "returned", "raised" or "" (no end)."""

    id: str
    key: str = "plain"
    token: int = 1
    pids: Sequence[int] = (1,)
    attempt: int = 1
    begin: float = 0.0
    wall: float = 0.0
    due_ms: int = 0
    until: float = 0.0
    how: str = ""


@dataclass(frozen=True)
class Span:
    """A fault, or another time in which something was wrong. It excuses lateness from `begin` to `until`."""

    name: str
    begin: float
    end: float
    excuses: Sequence[tuple[float, float]] = ()
    pids: Sequence[int] = ()
    """The processes that were killed, frozen or stalled."""


@dataclass
class Ledger:
    """All of it."""

    asks: list[PermitRequest] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    clocks: list[tuple[float, int]] = field(default_factory=list)
    """When the database's clock was put how far ahead."""
    findings: list[str] = field(default_factory=list)
    """What was seen to be wrong on the way."""


def read(path: Path) -> Ledger:
    """Read a ledger."""
    ledger, asks, runs = Ledger(), dict[Any, PermitRequest](), dict[Any, Run]()
    for line in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        what, at, wall = line.pop("what"), line.pop("at"), line.pop("wall")
        run = (line.get("id"), line.get("token"), tuple(line.get("pids", ())))
        match what:
            case "ask":
                number = line.pop("number")
                asks[number] = PermitRequest(at=at, wall=wall, **line)
            case "answer":
                number = line.pop("number")
                asks[number] = replace(asks[number], answered=at, **line)
            case "start":
                runs[run] = Run(begin=at, wall=wall, until=at, **line)
            case "beat" | "end":
                runs[run] = replace(runs[run], until=at, how=line.get("how", ""))
            case "clock":
                ledger.clocks.append((at, line["ms"]))
            case "finding":
                ledger.findings.append(line["text"])
            case "span":
                ledger.spans.append(Span(**line))
    ledger.asks, ledger.runs = list(asks.values()), sorted(runs.values(), key=lambda run: run.begin)
    return ledger
