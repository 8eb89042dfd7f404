"""Keep the steps of a sequence, and make the message of each. Pure: no Django, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from django_delayq.core.codec import Natural
from django_delayq.core.requests import Header, NewMessage
from django_delayq.core.rules import decode, encode
from django_delayq.core.steps import StepName

MOST_STEPS = 99


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step as a sequence keeps it: how to send its message, and when it is due after the end of the one before.

    `rule` has its window, its spread and its local time (rules.py); '' if it has none.
    """

    header: Header
    after_ms: Natural = 0
    rule: str = ""


class NewSequence(NamedTuple):
    """A sequence to start: its id, its steps, their data, and their tags."""

    id: str
    plan: Sequence[PlannedStep]
    body: bytes
    tags: Sequence[str]


def asks_calendar(step: PlannedStep) -> bool:
    """Return whether a calendar by name has a say in when a step is due. Raises like `decode`."""
    return bool(step.rule) and decode(step.rule).asks_calendar


def message_of(step: PlannedStep, name: StepName, body: bytes, now_ms: int) -> NewMessage:
    """Return the message of a step, if the one before it ends at `now_ms`. Raises like `Rule.due_ms`."""
    if not step.rule:
        return NewMessage(name.message_id, step.header, body, delay_ms=step.after_ms)
    rule = replace(decode(step.rule), from_ms=now_ms + step.after_ms)
    at_ms = rule.due_ms(name.message_id)
    return NewMessage(name.message_id, step.header, body, at_ms=at_ms, rule=encode(rule) or "")
