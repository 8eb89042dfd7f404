"""Write a line for each thing that an operator does, to the logger `django_delayq.audit`.

The admin and the commands write the same line: the action, who did it, from where, the alias, and what was acted on. It
has no payload. Values are quoted where needed, so that nobody can forge a line, or a second value within a line.
"""

import getpass
import logging
import os
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple

from django_delayq.support.logging import Enduring
from django_delayq.support.sanitize import masked, one_line

NAMED = 100
"""The most ids that a line names. If there are more, several lines are written."""

_PLAIN = re.compile(r"[\w@.:/+*-]+")

logger = Enduring(logging.getLogger("django_delayq.audit"))
"""The logger of the audit lines, all of which have the level INFO."""


class Operator(NamedTuple):
    """The person or system user who does something, and the place from which it is done."""

    who: str
    origin: str


def operator_of_process() -> Operator:
    """Return the system user that runs this process. On Unix, environment variables can't change the answer."""
    try:
        import pwd

        who = pwd.getpwuid(os.getuid()).pw_name
    except ImportError:
        who = getpass.getuser()
    except KeyError:  # in a container, a user may have no name
        who = f"uid {os.getuid()}"
    return Operator(who, f"manage.py on {socket.gethostname()}")


def record(operator: Operator, action: str, alias: str, ids: Sequence[str] = (), /, **facts: object) -> None:
    """Log what an operator has done, and the ids of the messages, if any."""
    named = {"who": operator.who, "from": operator.origin, "alias": alias, **facts}
    line = " ".join([action, *(f"{name}={_quoted(str(value))}" for name, value in named.items() if value is not None)])
    pages = [ids[at : at + NAMED] for at in range(0, len(ids), NAMED)]
    for page in pages:
        logger.info("%s", f"{line} ids={','.join(map(_quoted, page))}")
    if not pages:
        logger.info("%s", line)


def _quoted(text: str) -> str:
    """Return the text unchanged if it can't be mistaken for two values; else quoted, escaped, and without passwords."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + one_line(masked(text).replace("\\", "\\\\").replace('"', '\\"')) + '"'
