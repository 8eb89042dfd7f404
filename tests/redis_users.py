"""The users of Redis that docs/how-to/deploy.md tells a site to make, on a test's server."""

import re
from hashlib import sha256
from pathlib import Path

from tests.servers import Server

_PAGE = Path(__file__).parents[1] / "docs/how-to/deploy.md"
(ACL,) = re.findall(r"^```conf\n(user .*?)```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
"""The block of users, for an aclfile."""
_RULES = {name: rules.split() for name, rules in re.findall(r"^user delayq-(\w+) (.*)$", ACL, re.MULTILINE)}


def login(name: str) -> str:
    """Its login, "name:password"."""
    password = f"{name}-password"
    assert f"#{sha256(password.encode()).hexdigest()}" in _RULES[name]
    return f"delayq-{name}:{password}"


def allow(server: Server, name: str, *more: str) -> str:
    """Its login, "name:password", which is there from now on, with more rules than those."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", f"delayq-{name}", "reset", *_RULES[name], *more)
    return login(name)


def location_of(server: Server, name: str, *more: str) -> str:
    """LOCATION for the user, who is there from now on, with more rules than the page's."""
    return f"unix://{allow(server, name, *more)}@{server.socket}?db=0"
