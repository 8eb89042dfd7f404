"""SQLite files, with what a database server of the tests can do."""

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from shutil import copyfile
from typing import Any

from tests.settings import sqlite


class SqliteFiles:
    """The databases of a directory: files with a write-ahead log, so that readers and one writer go on side by side."""

    running = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def settings(self, name: str) -> dict[str, Any]:
        """Return what DATABASES says of this database."""
        return sqlite(str(self._path(name)))

    def create_database(self, name: str) -> None:
        """A new, empty one."""
        with closing(sqlite3.connect(self._path(name))) as connection:
            connection.execute("PRAGMA journal_mode=WAL")

    def copy_database(self, name: str, template: str) -> None:
        """A new one with all that is in `template`, to which nobody may be connected."""
        copyfile(self._path(template), self._path(name))

    def empty_database(self, name: str, tables: Collection[str]) -> None:
        """Delete the rows of these tables."""
        with closing(sqlite3.connect(self._path(name))) as connection, connection:
            for table in tables:
                connection.execute(f'DELETE FROM "{table}"')  # noqa: S608  a name of our own

    def drop_database(self, name: str) -> None:
        """Remove it."""
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path(name)}{suffix}").unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.sqlite3"
