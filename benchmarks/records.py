"""What the handlers wrote down."""

from dataclasses import dataclass

from benchmarks.server import Server
from benchmarks.worker import RECORDS


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one message. `lateness_ms` is by the machine's clock, negative when it was early."""

    id: str
    attempt: int
    lateness_ms: float


def read_records(server: Server) -> list[Record]:
    """Every run so far, in order."""
    path = server.directory / RECORDS
    return [_parse(line) for line in path.read_text().splitlines()] if path.exists() else []


def _parse(line: str) -> Record:
    id, attempt, due_ms, now_ns = line.split()
    return Record(id, int(attempt), int(now_ns) / 1e6 - int(due_ms))
