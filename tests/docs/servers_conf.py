"""Blocks of redis.conf: a server is started with them, so a directive that does not exist fails."""

from tests import servers
from tests.docs.site import Site


def check(site: Site, block: str, line: int) -> str | None:
    """Start each installed server with the block, and stop it."""
    path = site.directory / "redis.conf"
    path.write_text(block)
    for binary in servers.redis_binaries():
        server = servers.Server(binary, include=str(path))
        server.close()
    return None
