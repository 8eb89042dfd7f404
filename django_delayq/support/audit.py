"""Write a line for each thing that an operator does, to the logger `django_delayq.audit`.

The admin and the commands write the same line: the verb, who, from where, the alias, and what it was done to. It has no
payload. Each value is quoted where that is needed, so that nobody forges a line, or another value in one.
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
"""The most ids that a line names. What is done to more takes several lines."""

_PLAIN = re.compile(r"[\w@.:/+*-]+")

logger = Enduring(logging.getLogger("django_delayq.audit"))
"""The logger of the audit lines, all of which have the level INFO."""


class Operator(NamedTuple):
    """Who does something, and from where."""

    who: str
    origin: str


def operator_of_process() -> Operator:
    """Return the user of the operating system who runs this process. The environment has no say in it."""
    try:
        import pwd

        who = pwd.getpwuid(os.getuid()).pw_name
    except ImportError:
        who = getpass.getuser()
    except KeyError:  # in a container, a user may have no name
        who = f"uid {os.getuid()}"
    return Operator(who, f"manage.py on {socket.gethostname()}")


def record(operator: Operator, verb: str, alias: str, ids: Sequence[str] = (), /, **facts: object) -> None:
    """Write that the operator did something, after it was done: to the messages of these ids, if there are any."""
    named = {"who": operator.who, "from": operator.origin, "alias": alias, **facts}
    line = " ".join([verb, *(f"{name}={_quoted(str(value))}" for name, value in named.items() if value is not None)])
    pages = [ids[at : at + NAMED] for at in range(0, len(ids), NAMED)]
    for page in pages:
        logger.info("%s", f"{line} ids={','.join(map(_quoted, page))}")
    if not pages:
        logger.info("%s", line)


def _quoted(text: str) -> str:
    """Return the text as it is if nobody can take it for two, else in quotes and with escapes."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + one_line(masked(text).replace("\\", "\\\\").replace('"', '\\"')) + '"'
