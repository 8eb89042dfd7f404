"""Dockerfiles. No container is built in a test: what ours is the command line of, our commands must accept."""

import json
import shlex

from tests.docs.command_lines import refused
from tests.docs.site import Site

_INSTRUCTIONS = frozenset({"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "CMD", "ENTRYPOINT", "HEALTHCHECK", "STOPSIGNAL"})


def check(site: Site, block: str, line: int) -> str | None:
    """Every instruction is one that exists, and what runs manage.py is a command line that it takes."""
    for instruction in block.replace("\\\n", " ").splitlines():
        name, _, rest = instruction.partition(" ")
        if instruction.strip() and not instruction.startswith("#") and name not in _INSTRUCTIONS:
            return f"{instruction!r} is no instruction of a Dockerfile"
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
        if "manage.py" in words and (wrong := refused(words[words.index("manage.py") + 1 :])):
            return wrong
    return None
