"""The users of Redis that docs/how-to/deploy.md tells a site to make, on a test's server."""

import re
from pathlib import Path

from tests.servers import Server

_PAGE = Path(__file__).parents[1] / "docs/how-to/deploy.md"
_RULES = {
    name: rules.split() for name, rules in re.findall(r"^user delayq-(\w+) (.*)$", _PAGE.read_text(), re.MULTILINE)
}


def location_of(server: Server, name: str) -> str:
    """LOCATION for the user, who is there from now on."""
    rules = _RULES[name]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", f"delayq-{name}", "reset", *rules)
    (password,) = (rule.removeprefix(">") for rule in rules if rule.startswith(">"))
    return f"unix://delayq-{name}:{password}@{server.socket}?db=0"
