"""Read the runs that the handlers wrote down."""

from dataclasses import dataclass

from benchmarks.server import AnyServer
from benchmarks.worker import RECORDS


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one message, by the machine's clock. `lateness_ms` is negative if it was early."""

    id: str
    attempt: int
    ran_ms: float
    lateness_ms: float


def read_records(server: AnyServer) -> list[Record]:
    """Return every run so far, in order."""
    path = server.directory / RECORDS
    return [_parse(line) for line in path.read_text().splitlines()] if path.exists() else []


def count_records(server: AnyServer) -> int:
    """Return how many runs were written down so far. This parses nothing, so it may be called often."""
    path = server.directory / RECORDS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _parse(line: str) -> Record:
    id, attempt, due_ms, now_ns = line.split()
    ran_ms = int(now_ns) / 1e6
    return Record(id, int(attempt), ran_ms, ran_ms - int(due_ms))
