"""Keep the steps of a sequence, and make the message of each. Pure: no Django, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
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


def message_of(step: PlannedStep, name: StepName, body: bytes, now_ms: int) -> NewMessage:
    """Return the message of a step, if the one before it ends at `now_ms`. Raises like `Rule.due_ms`."""
    if not step.rule:
        return NewMessage(name.message_id, step.header, body, delay_ms=step.after_ms)
    rule = replace(decode(step.rule), from_ms=now_ms + step.after_ms)
    at_ms = rule.due_ms(name.message_id)
    return NewMessage(name.message_id, step.header, body, at_ms=at_ms, rule=encode(rule) or "")


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step that comes next in a sequence, and the data of its message."""

    name: StepName
    step: PlannedStep = field(hash=False)  # a header has no hash
    data: str

    def message(self, now_ms: int) -> NewMessage:
        """Return its message, if the step before it ends at `now_ms`. Raises like `message_of`."""
        return message_of(self.step, self.name, self.data.encode(), now_ms)


Ahead = Mapping[NextStep, NewMessage | None]
"""The messages of steps with rules, which were made ahead of the transaction that puts them; None for one that failed.

A rule may ask a calendar, and that is the site's code: it may take longer than a transaction may rest, and PostgreSQL
refuses the rest of a transaction in which a query of it has failed.
"""
NOTHING: Ahead = MappingProxyType({})
