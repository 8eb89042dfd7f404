"""`python -m benchmarks [NAME ...]`: run all or some, print the table, exit with 1 if a bound is missed."""

import os
import sys
from importlib import import_module

import django

from benchmarks.result import Result, table

NAMES = (
    *("send", "bulk", "drain", "waiting", "lateness", "idle", "kill", "memory", "stall"),
    *("shards", "served", "processes"),
    *("stored_bulk", "stored_send", "stored_drain", "stored_fresh", "stored_peer"),
    *("stored_lateness", "stored_waiting", "stored_status", "stored_life", "stored_snapshot", "stored_memory"),
    *("takeover", "flush", "limited", "shares", "batches", "admin_pages"),
    *("alone_lateness", "alone_idle", "alone_drain", "alone_workers"),
)
"""The benchmarks that run by default. Each is a module."""
BY_NAME = ("human_time", "plans", "spark", "stored_huge", "tasks", "trip")
"""The benchmarks that run only if they are named: they measure no speed, need Spark, or take very long."""


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, or all. Return the exit code."""
    unknown = [name for name in names if name not in NAMES + BY_NAME]
    if unknown:
        sys.stderr.write(f"There is no benchmark {unknown[0]!r}; there is: {', '.join(NAMES + BY_NAME)}.\n")
        return 2
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    results: list[Result] = []
    for name in names or NAMES:
        sys.stderr.write(f"{name} ...\n")
        results += import_module(f"benchmarks.{name}").run()
    sys.stdout.write(table(results) + "\n")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
