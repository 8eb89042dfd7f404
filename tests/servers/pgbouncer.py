"""Private PgBouncers, each in front of a private PostgreSQL."""

import shutil
from functools import cache
from pathlib import Path
from signal import SIGINT
from typing import Any

from tests.servers.postgres import USER, PostgresServer
from tests.servers.process import PrivateServer, free_port, unprivileged


@cache
def pgbouncer_program() -> str | None:
    """The program, where Debian has it, or on PATH."""
    return shutil.which("pgbouncer") or next(
        (str(path) for path in [Path("/usr/sbin/pgbouncer")] if path.exists()), None
    )


class PgBouncer(PrivateServer):
    """One that gives each transaction another session."""

    READY = "process up"
    STOP = SIGINT

    def __init__(self, program: str, server: PostgresServer) -> None:
        super().__init__(**unprivileged())
        self.program, self.server, self.port = program, server, free_port()
        lines = [
            "[databases]",
            f"* = host={server.directory} port={server.options['port']}",
            "[pgbouncer]",
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =",
            "pool_mode = transaction\nauth_type = trust\nauth_file = users",
        ]
        (self.directory / "pgbouncer.ini").write_text("\n".join(lines))
        (self.directory / "users").write_text(f'"{USER}" ""\n')
        self.start()

    def command(self) -> list[str]:
        """The program and its arguments."""
        return [self.program, "pgbouncer.ini"]

    def settings(self, name: str) -> dict[str, Any]:
        """Return what DATABASES says of this database behind it."""
        return self.server.settings(name) | {
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "DISABLE_SERVER_SIDE_CURSORS": True,
        }
