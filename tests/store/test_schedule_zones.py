"""However the rules of a zone change, each local time of a schedule ends once: a random walk against a model."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_delayq import (
    Cron,
    Every,
    Window,
    cancel_delay_messages,
    pause_delay_schedules,
    reschedule_delay_messages,
    resume_delay_schedules,
    schedule_delay_message,
)
from django_delayq.brokers.base import Claimed, SettleAction
from django_delayq.core.recurrence import Rule, span
from django_delayq.models import ReadyMessage
from django_delayq.store import DatabaseBackend
from django_delayq.support.timestamps import from_ms
from tests.brokers.rig import settlement
from tests.scale import scaled
from tests.store.skewed import DatabaseClock
from tests.store.test_schedules import ChangeZone, claim, clock, go_to, info_of, look, resolve, stored_delayq

__all__ = ["clock", "stored_delayq"]  # fixtures

WALKS, STEPS = scaled(8), 70
LIKE = ["Europe/Paris", "Europe/London", "Europe/Athens", "Asia/Kathmandu", "America/New_York", "Pacific/Kiritimati"]
RULES: list[Callable[[str], Rule]] = [
    lambda zone: Every(days=1, time="12:00", zone=zone),
    lambda zone: Cron("0 * * * *", zone=zone),
    lambda zone: Cron("0 12,13 * * *", zone=zone),
    lambda zone: Every(weeks=1, weekdays="mon-fri", time="10:30", zone=zone),
]


@dataclass
class Walk:
    """A schedule and what has become of its local times, while random things happen to it."""

    broker: DatabaseBackend
    clock: DatabaseClock
    database: str
    change_zone: ChangeZone
    chance: random.Random
    rule: Callable[[str], Rule]
    options: dict[str, Any]
    held: list[Claimed] = field(default_factory=list)
    ended: list[datetime] = field(default_factory=list)
    cancelled: set[datetime] = field(default_factory=set)
    is_paused: bool = False
    data: int = 0

    def write(self) -> None:
        self.data += 1
        schedule_delay_message("k", self.data, name="s", every=self.rule("Europe/Rome"), **self.options)

    def pass_time(self) -> None:
        now = from_ms(self.broker.database.now_ms())
        row = self._waiting()
        is_later = row is not None and row.due_at > now
        go_to(self.broker, self.clock, row.due_at if row and is_later else now + timedelta(minutes=40))
        look(self.broker)

    def claim(self) -> None:
        if not self.held:
            self.held = claim(self.broker)
            assert len(self.held) <= 1, self.held

    def finish(self) -> None:
        for one in self.held:
            self.broker.queue.apply([settlement(one, SettleAction.FINISH)])
            self.ended.append(local_time(one.id))
        self.held = []

    def put_off(self) -> None:
        action = self.chance.choice([SettleAction.RETRY, SettleAction.SNOOZE])
        for one in self.held:
            self.broker.queue.apply([settlement(one, action, delay_ms=4_000_000)])
        self.held = []

    def move_zone(self) -> None:
        self.change_zone("Europe/Rome", self.chance.choice(LIKE))

    def resolve(self) -> None:
        resolve()

    def cancel(self) -> None:
        if row := self._waiting():
            cancel_delay_messages(row.message_id)
            self.cancelled.add(local_time(row.message_id))

    def reschedule(self) -> None:
        if row := self._waiting():
            reschedule_delay_messages(row.message_id, delay=timedelta(minutes=self.chance.choice([10, 100, 900])))

    def pause_or_resume(self) -> None:
        if self.is_paused:
            resume_delay_schedules("s")
        else:
            pause_delay_schedules("s", reason="stocktaking")
        self.is_paused = not self.is_paused

    def _waiting(self) -> ReadyMessage | None:
        rows = ReadyMessage.objects.using(self.database).filter(message_id=info_of().message_id, token=None)
        return rows.first()


def local_time(id: str) -> datetime:
    return datetime.fromisoformat(id.partition("@")[2].partition("[")[0])


ALWAYS = [Walk.pass_time] * 4 + [Walk.claim] * 3 + [Walk.finish] * 3 + [Walk.move_zone, Walk.resolve]
OTHERS = [[], [Walk.put_off, Walk.cancel, Walk.reschedule], [Walk.pause_or_resume, Walk.write, Walk.cancel]]


@pytest.mark.parametrize("number", range(WALKS))
def test_each_local_time_ends_once_however_its_zone_changes(
    broker: DatabaseBackend, clock: DatabaseClock, database: str, change_zone: ChangeZone, number: int
) -> None:
    chance = random.Random(number)
    window = chance.choice([None, Window("mon-sun", "00:00", "24:00", zone="UTC")])
    options = {"overlap": "after", "catch_up": "all", "window": window}
    walk = Walk(broker, clock, database, change_zone, chance, chance.choice(RULES), options)
    others = OTHERS[number % len(OTHERS)]
    walk.write()
    first = local_time(info_of().message_id)
    for _ in range(STEPS):
        chance.choice(ALWAYS + others)(walk)
    walk.finish()
    assert len(set(walk.ended)) == len(walk.ended), walk.ended
    assert not walk.cancelled.intersection(walk.ended), (walk.cancelled, walk.ended)
    if walk.ended and Walk.pause_or_resume not in others:
        begin = first.replace(tzinfo=UTC) - timedelta(seconds=1)
        every = span(walk.rule("UTC"), begin, max(walk.ended).replace(tzinfo=UTC))
        assert {at.replace(tzinfo=None) for at in every} <= walk.cancelled.union(walk.ended)
