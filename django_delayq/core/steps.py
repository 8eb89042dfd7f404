"""Name the message of each step of a sequence, and read the name. Pure: no Django, no I/O."""

import re
from typing import NamedTuple

_ID = re.compile(r"([^:@]+):(.+)@([1-9][0-9]?)", re.DOTALL)


class StepName(NamedTuple):
    """The name of a sequence, the id with which it was started, and the number of one of its steps, from 1."""

    name: str
    id: str
    number: int

    @property
    def message_id(self) -> str:
        """Return the id of the step's message."""
        return f"{self.name}:{self.id}@{self.number}"


def step_of(message_id: str) -> StepName | None:
    """Return the step of which an id tells; None if it is no such id.

    A site may give any message such an id: only a row of `delayq_sequence` says that it is a step.
    """
    match = _ID.fullmatch(message_id) if message_id[-1:].isdigit() else None
    return None if match is None else StepName(match[1], match[2], int(match[3]))
