"""Blocks of redis.conf: a server is started with them, so a directive that does not exist fails."""

from pathlib import Path

import trustme

from tests import servers
from tests.docs.site import Site


def check(site: Site, block: str, line: int) -> str | None:
    """Start each installed server with the block, and stop it."""
    path = site.directory / "redis.conf"
    path.write_text(_here(block, site.directory))
    for binary in servers.redis_binaries():
        try:
            server = servers.Server(binary, include=str(path))
        except RuntimeError:
            if "tls-port" not in block:  # one that was built without TLS does not know the options
                raise
        else:
            server.close()
    return None


def _here(block: str, directory: Path) -> str:
    """The block with the files that it names, which are made, and another port, which is free."""
    if "/etc/redis/" in block:
        authority, files = trustme.CA(), directory / "tls"
        files.mkdir()
        own = authority.issue_cert("redis.example.internal")
        authority.cert_pem.write_to_path(files / "ca.crt")
        own.cert_chain_pems[0].write_to_path(files / "redis.crt")
        own.private_key_pem.write_to_path(files / "redis.key")
        (directory / "users.acl").write_text("user default off\n")
    return block.replace("/etc/redis", str(directory)).replace("tls-port 6379", f"tls-port {servers.free_port()}")
