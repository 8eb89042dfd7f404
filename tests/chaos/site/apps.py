"""What each process of a round does at its start."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tests.chaos import ledger

CLOCKS = {
    "postgresql": ("statement_timestamp()", "(statement_timestamp() + interval '{ms} milliseconds')"),
    "sqlite": ("julianday('now')", "(julianday('now') + {ms} / 86400000.0)"),
    "mysql": ("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) + INTERVAL {ms}000 MICROSECOND)"),
}
"""The clock of each database, and the same put ahead."""
TICK_S = 0.1
STALL_S = 1.0


class Config(AppConfig):
    """Of this app."""

    name = "tests.chaos.site"
    label = "chaos"

    def ready(self) -> None:
        connection_created.connect(_with_clock)
        threading.Thread(target=_watch, daemon=True).start()


def _with_clock(connection: BaseDatabaseWrapper, **_: Any) -> None:
    if _executed not in connection.execute_wrappers:
        connection.execute_wrappers.append(_executed)


def _executed(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Run a statement on a database whose clock is put ahead: no server's own clock can be."""
    if ms := ledger.skew_ms():
        told, ahead = CLOCKS[context["connection"].vendor]
        sql = sql.replace(told, ahead.format(ms=ms))
    return execute(sql, params, many, context)


def _watch() -> None:
    """Tell when this process got no turn for a while: it was frozen, or the machine has too much to do."""
    before = time.monotonic()
    while True:
        time.sleep(TICK_S)
        now = time.monotonic()
        if now - before > STALL_S:
            excused = [(before, now + STALL_S)]
            ledger.write("span", name="stall", begin=before, end=now, excuses=excused, pids=[os.getpid()])
        before = now
