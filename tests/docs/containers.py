"""Dockerfiles. No container is built in a test: the command lines in ours must be such as our commands accept."""

import json

from tests.docs.command_lines import refused
from tests.docs.site import Site

_INSTRUCTIONS = ("FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "CMD", "ENTRYPOINT", "HEALTHCHECK", "STOPSIGNAL")


def check(site: Site, block: str, line: int) -> str | None:
    """Every instruction is one that exists, and what runs manage.py is a command line that it takes."""
    for instruction in filter(None, block.splitlines()):
        name, _, rest = instruction.partition(" ")
        if name not in _INSTRUCTIONS:
            return f"{instruction!r} is no instruction of a Dockerfile"
        if wrong := refused(" ".join(json.loads(rest)) if rest.startswith("[") else rest):
            return wrong
    return None
