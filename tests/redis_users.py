"""The users of Redis that docs/how-to/deploy.md tells a site to make, on a test's server."""

import re
from pathlib import Path

from tests.servers import Server

_PAGE = Path(__file__).parents[1] / "docs/how-to/deploy.md"
_RULES = {
    name: rules.split() for name, rules in re.findall(r"^user delayq-(\w+) (.*)$", _PAGE.read_text(), re.MULTILINE)
}


def allow(server: Server, name: str, *more: str) -> str:
    """Its login, "name:password", which is there from now on, with more rules than those."""
    rules = _RULES[name]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", f"delayq-{name}", "reset", *rules, *more)
    (password,) = (rule.removeprefix(">") for rule in rules if rule.startswith(">"))
    return f"delayq-{name}:{password}"


def location_of(server: Server, name: str, *more: str) -> str:
    """LOCATION for the user, who is there from now on, with more rules than the page's."""
    return f"unix://{allow(server, name, *more)}@{server.socket}?db=0"
