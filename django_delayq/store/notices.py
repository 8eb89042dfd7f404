"""Notify workers of commits, on PostgreSQL: NOTIFY is part of a commit, and a worker listens on its own connection."""

import secrets
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from django_delayq.store.database import Database
from django_delayq.support.logging import logger

CHANNEL = "delayq"
APART = "\x1f"
"""The separator of the parts of a notice. Names have no control characters."""
PAUSES, WORKERS = "pauses", "workers"
"""The texts of notices that are not about rows: pauses have changed; a worker has started or stopped."""
AT_ONCE, SOON = 0, -1
"""The values in place of a due time in a notice of many rows: some of them are due at once; some are due soon."""
AT_ONCE_MS = 2
"""Rows that are due within this time count as due at once: due times are rounded up to a whole millisecond."""
ANSWER_S = 1.0
"""How long a new listener waits for a notice that it has sent itself."""
LOOK_S = 1.0
"""How often the listener checks whether it was closed."""
AGAIN_S, DEAF_S = 1.0, 60.0
"""How long the listener waits before it tries again: after a lost connection, and where no notices arrive."""


class Deaf(Exception):
    """LISTEN does not work on a connection. The text says why."""


def notice(database: Database, within_ms: int, due: str = "due_at") -> str:
    """Return SQL for one more column of a statement's result, by which the commit notifies workers of the rows.

    It notifies of each row that is due within `within_ms`. A notice names the alias, the pair and the value of `due`,
    which is SQL. PostgreSQL sends equal notices of a transaction only once.
    """
    text = f"concat_ws(E'\\x1f', alias, queue, \"key\", {due})"
    return (
        f", CASE WHEN due_at <= {database.dialect.now} + {within_ms}"
        f" THEN CAST(pg_notify('{CHANNEL}', {text}) AS text) END"
    )


def notice_of_many(database: Database, within_ms: int) -> str:
    """Return SQL like `notice`, for many rows: it sends at most two notices for a pair, `AT_ONCE` and `SOON`."""
    at_once = f"due_at <= {database.dialect.now} + {AT_ONCE_MS}"
    return notice(database, within_ms, f"CASE WHEN {at_once} THEN {AT_ONCE} ELSE {SOON} END")


def notify(database: Database, what: str) -> None:
    """Send the notice `what` when the caller's transaction commits, or at once if there is no transaction."""
    with database.available():
        text = APART.join([database.alias, what])
        database.rows("SELECT CAST(pg_notify(%s, %s) AS text)", [CHANNEL, text])


class Listener:
    """A thread that listens for notices, and tries again while it can't.

    It calls `hear` for each notice of its alias, with the other parts of the notice: a queue, a key and a due time, or
    `PAUSES`, or `WORKERS`. It calls `note_listening` with True when it begins to hear notices, and with False when it
    stops.
    """

    def __init__(
        self, database: Database, hear: Callable[[Sequence[str]], None], note_listening: Callable[[bool], None]
    ) -> None:
        self._database = database
        self._hear = hear
        self._note_listening = note_listening
        self._said = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen_forever, name="delayq-listen", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Tell the thread to end. It does so within `LOOK_S`, and closes its connection."""
        self._closed.set()

    def _listen_forever(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(_connect(self._database)) as connection:
                    self._listen(connection)
            except Deaf as error:
                self._say(str(error))
                self._closed.wait(DEAF_S)
            except Exception as error:  # noqa: BLE001 - whatever it is, only another try can help
                self._say(str(error).strip().partition("\n")[0])
                self._closed.wait(AGAIN_S)

    def _listen(self, connection: Any) -> None:
        """Listen until the listener is closed. Raises if the connection is lost, and `Deaf` if notices don't arrive."""
        connection.execute(f"LISTEN {CHANNEL}")
        self._hear_oneself(connection)
        if self._said:
            logger.info("Database %r notifies of commits again.", self._database.using)
            self._said = ""
        self._note_listening(True)
        try:
            while not self._closed.is_set():
                for text in _come(connection, LOOK_S):
                    alias, *about = text.split(APART)
                    if alias == self._database.alias:
                        self._hear(about)
        finally:
            self._note_listening(False)

    def _hear_oneself(self, connection: Any) -> None:
        """Send a notice over another connection, and wait until it arrives. Raises `Deaf` if it does not."""
        text = f"{APART}{secrets.token_hex(8)}"
        with closing(_connect(self._database)) as another:
            another.execute("SELECT pg_notify(%s, %s)", [CHANNEL, text])
        until = monotonic() + ANSWER_S
        while (left_s := until - monotonic()) > 0:
            if text in _come(connection, left_s):
                return
        connection.execute(f"UNLISTEN {CHANNEL}")
        raise Deaf("a notice did not arrive, as through PgBouncer in transaction mode")

    def _say(self, why: str) -> None:
        """Log why commits don't notify this worker, unless the last log line gave the same reason."""
        if why != self._said:
            self._said = why
            logger.warning(
                "Database %r does not notify this worker of commits, so it looks four times a second: %s.",
                self._database.using,
                why,
            )


def _come(connection: Any, timeout_s: float) -> list[str]:
    """Return the texts of the notices that have arrived, after waiting up to `timeout_s` for the first."""
    wire = connection.pgconn
    poll = select.poll()
    poll.register(wire.socket, select.POLLIN)
    if poll.poll(timeout_s * 1000):
        wire.consume_input()  # raises if the connection is lost
    texts = []
    while came := wire.notifies():
        texts.append(came.extra.decode())
    return texts


def _connect(database: Database) -> Any:
    """Open a connection of psycopg 3 that is neither Django's own nor from its pool."""
    wrapper = database.connection.copy()
    wrapper.settings_dict["OPTIONS"].pop("pool", None)
    connection = wrapper.get_new_connection(wrapper.get_connection_params())
    if not hasattr(connection, "pgconn"):
        connection.close()
        raise Deaf("psycopg 2 is installed, and this needs psycopg 3")
    connection.autocommit = True
    return connection
