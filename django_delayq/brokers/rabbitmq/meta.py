"""Pauses, heartbeats and the rebuild of alarms: edits of the register. No I/O."""

import secrets
from dataclasses import replace

from django_delayq.brokers.base import Pause, WorkerInfo
from django_delayq.brokers.rabbitmq.register import Entries

HEARTBEAT_MS = 15_000
FORGOTTEN_MS = 60_000


def pauses_of(entries: Entries, now_ms: int) -> list[Pause]:
    """Those in force, by queue and key."""
    held = (pause for pause in entries.pauses if pause.holds(now_ms))
    return sorted(held, key=lambda pause: (pause.queue or "", pause.key or ""))


def add_pause(entries: Entries, pause: Pause, now_ms: int) -> None:
    """Keep it, in the place of one of the same queue and key."""
    remove_pause(entries, pause.queue, pause.key, now_ms)
    entries.pauses.append(replace(pause, paused_ms=now_ms))


def remove_pause(entries: Entries, queue: str | None, key: str | None, now_ms: int) -> bool:
    """Drop it, with all that have ended. Whether it was in force."""
    held = pauses_of(entries, now_ms)
    entries.pauses = [pause for pause in held if (pause.queue, pause.key) != (queue, key)]
    return len(entries.pauses) < len(held)


def workers_of(entries: Entries, now_ms: int) -> list[WorkerInfo]:
    """Those whose heartbeat is young."""
    return [info for info in entries.workers.values() if info.seen_ms >= now_ms - HEARTBEAT_MS]


def announce(entries: Entries, worker: WorkerInfo, now_ms: int) -> list[Pause]:
    """A heartbeat. Those of workers that died are forgotten. Gives the pauses in force."""
    young = {name: info for name, info in entries.workers.items() if info.seen_ms >= now_ms - FORGOTTEN_MS}
    entries.workers = {**young, worker.name: replace(worker, seen_ms=now_ms)}
    return pauses_of(entries, now_ms)


def retire(entries: Entries, worker: str) -> None:
    """Take a heartbeat back."""
    entries.workers.pop(worker, None)


def begin_rebuild(entries: Entries, mine: str, now_ms: int, lock_ms: int) -> str:
    """Take the lock, or hold on to it. Gives its token, "" when another has it, or nothing is lost."""
    if mine:
        held = entries.builder == mine and now_ms < entries.builder_until_ms
    else:
        held = not entries.built and now_ms >= entries.builder_until_ms
    if not held:
        return ""
    entries.builder = mine or secrets.token_hex(8)
    entries.builder_until_ms = now_ms + lock_ms
    return entries.builder


def end_rebuild(entries: Entries, mine: str, now_ms: int) -> bool:
    """Give the lock up with every alarm put. False when it was lost."""
    if not mine or entries.builder != mine or now_ms >= entries.builder_until_ms:
        return False
    entries.built, entries.builder, entries.builder_until_ms = True, "", 0
    return True
