"""The backend of an alias with a store: the tables, with a broker beside them as their timer.

It also checks the database. Some faults must be mended before a worker starts; others are only worth a warning.
"""

import math

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.sqlite3.base import DatabaseWrapper as SqliteWrapper

from django_delayq.api import registry
from django_delayq.brokers.base import Broker, ServerReport
from django_delayq.conf import Alias, Store
from django_delayq.core.errors import BrokerUnavailable, ForeignMark
from django_delayq.models.fields import database_name
from django_delayq.store.alarms import Degraded
from django_delayq.store.database import Database, skew, skew_warnings
from django_delayq.store.limits import DatabaseLimiter
from django_delayq.store.mark import Mark
from django_delayq.store.presence import DatabasePresence
from django_delayq.store.queue import DatabaseQueue
from django_delayq.store.sql.postgresql import PostgreSQL
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import did_you_mean


class DatabaseBackend:
    """The backend of an alias with a store. See `Backend` in brokers/base.py."""

    def __init__(self, alias: Alias, settings: Store, broker: Broker) -> None:
        self.check(alias)
        self.database = broker.database or Database(alias.name, alias.database)
        # The database alone never needs the degraded mode: its timer reads the rows themselves.
        self.degraded = Degraded(math.inf if broker.window is None else settings.degraded_after)
        self.broker = broker
        self.mark = Mark(self.database, alias, broker.window, broker.places(alias))
        self.queue = self.store = DatabaseQueue(alias, settings, self.database, broker, self.degraded, self.mark)
        self.presence = DatabasePresence(self.database, broker, self.degraded, self.mark)
        self.limiter = DatabaseLimiter(self.database)
        self.alias = alias
        self._is_fit = False

    @staticmethod
    def check(alias: Alias) -> None:
        """Raise `ImproperlyConfigured` unless the alias's database exists and commits by itself."""
        database = connections.settings.get(alias.database)
        if database is None:
            known = did_you_mean(alias.database, connections.settings)
            raise ImproperlyConfigured(
                f'DELAYQ["{alias.name}"]["DATABASE"]={alias.database!r} is not in DATABASES; {known}'
            )
        if not database["AUTOCOMMIT"]:
            raise ImproperlyConfigured(
                f'DATABASES["{alias.database}"]["AUTOCOMMIT"] is False: nothing that the store of '
                f'DELAYQ["{alias.name}"] does there would be committed. Leave AUTOCOMMIT out, or name in '
                f'DELAYQ["{alias.name}"]["DATABASE"] another entry of DATABASES, without it.'
            )

    def open(self) -> None:
        self.broker.open()

    def close(self) -> None:
        self.broker.close()

    def report(self) -> ServerReport:
        lacking = [] if self._is_fit else problems(self.database) or isolation_problems(self.database)
        self._is_fit = not lacking  # then it is not checked again
        with self.database.available():
            found = self._report()
        found.problems += lacking
        found.warnings += warnings(self.database)
        found.durability = DURABILITY
        if self._is_fit and found.foreign:
            self._start_without_broker(found)
        return found

    def _report(self) -> ServerReport:
        """Return the broker's report on itself, with warnings about its clock, and set our mark there.

        Raises `BrokerUnavailable` if the broker is away and the degraded mode is off. In degraded mode a worker may
        start without the broker.
        """
        before_ms = self.database.now_ms()
        try:
            found = self.degraded.ask(self._ask_broker)
        except BrokerUnavailable as error:
            self.degraded.begin_if_due()
            if not self.degraded.on:
                raise
            return ServerReport("a broker that is away", "", [f"{error} The tables alone must do."], is_away=True)
        if found.now_ms is not None:
            found.warnings += skew_warnings(skew(found.now_ms, before_ms, self.database.now_ms()))
        return found

    def _ask_broker(self) -> ServerReport:
        """Return the broker's report on itself. Set our mark there, if the broker and the tables are fit for it."""
        try:
            found = self.broker.report()
        except ForeignMark as error:  # it has another layout
            return ServerReport("a broker with another site's mark", "", is_away=True, foreign=str(error))
        if self._is_fit and not found.problems:
            try:
                self.mark.set()
            except ForeignMark as error:
                found.foreign = str(error)
        return found

    def _start_without_broker(self, found: ServerReport) -> None:
        """Begin degraded mode because of a foreign mark. Raise `ForeignMark` if the broker never bore our mark."""
        if not self.mark.is_known():
            raise ForeignMark(found.foreign)
        self.degraded.begin_foreign()
        found.is_away = True
        found.warnings.append(found.foreign)


_WRITTEN = {
    "delayq_ready": ("INSERT", "UPDATE", "DELETE"),
    "delayq_finish": ("INSERT", "DELETE"),
    "delayq_error": ("INSERT", "DELETE"),
    "delayq_action": ("INSERT", "UPDATE", "DELETE"),
    "delayq_batch": ("INSERT", "UPDATE", "DELETE"),
    "delayq_difference": ("DELETE",),
    "delayq_figure": ("INSERT", "UPDATE", "DELETE"),
    "delayq_identity": ("INSERT",),
    "delayq_lane": ("INSERT",),
    "delayq_limit": ("INSERT", "UPDATE", "DELETE"),
    "delayq_returned": ("INSERT", "UPDATE", "DELETE"),
    "delayq_rule": ("INSERT", "UPDATE", "DELETE"),
    "delayq_schedule": ("INSERT", "UPDATE", "DELETE"),
    "delayq_sequence": ("INSERT", "UPDATE", "DELETE"),
    "delayq_sequence_tag": ("INSERT", "DELETE"),
    "delayq_tag": ("INSERT", "DELETE"),
    "delayq_undo": ("INSERT", "UPDATE", "DELETE"),
}
"""The rights that workers need to end, rescue, prune, count and limit messages, by table."""
DURABILITY = _("the messages are in the database: no crash of a broker loses one")
_WRITES = {
    "INSERT": "INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0",
    "UPDATE": "UPDATE {table} SET id = id WHERE 1 = 0",
    "DELETE": "DELETE FROM {table} WHERE 1 = 0",
}


def problems(database: Database) -> list[str]:
    """Return why the store can't work: tables or columns that are missing. One line, or none."""
    connection = database.connection
    lacking = []
    with database.available(), database.telling_what_it_lacks(), connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
        models = {
            model._meta.db_table: model
            for model in apps.get_app_config("delayq").get_models()
            if not model._meta.proxy  # its table is that of another model
        }
        if there.isdisjoint(models):
            return [database.lacks("the tables of delayq")]
        for table, model in models.items():
            if table not in there:
                lacking.append(f"the table {table}")
                continue
            columns = {each.name for each in connection.introspection.get_table_description(cursor, table)}
            wanted = [field.column for field in model._meta.local_concrete_fields]
            lacking += [f"the column {table}.{column}" for column in wanted if column not in columns]
    return [database.lacks(", ".join(lacking))] if lacking else []


_FROZEN_LEVELS = {
    "postgresql": PostgreSQL.hiding_level,
    "mariadb": (
        "SELECT DISTINCT concat(replace(level.variable_value, '-', ' '), ' with innodb_snapshot_isolation')"
        " FROM information_schema.session_variables level JOIN information_schema.session_variables snapshot"
        " ON snapshot.variable_name = 'INNODB_SNAPSHOT_ISOLATION' AND snapshot.variable_value = 'ON'"
        " WHERE level.variable_name IN ('TX_ISOLATION', 'TRANSACTION_ISOLATION')"  # two names of one variable
        " AND level.variable_value IN ('REPEATABLE-READ', 'SERIALIZABLE')"
    ),
}
"""A query for the isolation level, by database.

It gives a row only if a transaction at that level may not change a row that another has changed meanwhile.
"""


def isolation_problems(database: Database) -> list[str]:
    """Return why no atomic handler could end its message at the database's isolation level. One line, or none.

    At some levels a transaction can't change a row that another has changed since it began, and each renewal of the
    lease changes the row of the message.
    """
    handlers = registry.by_alias.get(database.alias, {}).values()
    # The handlers of django-delayq itself end long before a renewal.
    keys = sorted({one.key for one in handlers if one.atomic and not one.key.startswith("delayq.")})
    if not keys:
        return []
    with database.available():
        asked = _FROZEN_LEVELS.get(database_name(database.connection))
        # In a transaction, because the client may set the level when it begins one.
        levels = database.transaction(lambda: database.rows(asked)) if asked else []
    return [
        _(
            "Database %(database)r runs transactions at %(level)s: no atomic handler (%(keys)s) could end there once "
            "the lease of its message was renewed. Give the database READ COMMITTED, or make the handler not atomic.",
            database=database.using,
            level=level,
            keys=", ".join(map(repr, keys)),
        )
        for (level,) in levels
    ]


def missing_grants(database: Database) -> list[str]:
    """Return the rights that a worker needs and its database user lacks. One line, or none. This changes no row."""
    statements = {
        _WRITES[right].format(table=table): (right, table) for table, rights in _WRITTEN.items() for right in rights
    }
    with database.available():
        denied = [statements[one] for one in database.refused(statements)]
        if not denied:
            return []
        ((user,),) = database.rows("SELECT current_user")
    grants = "; ".join(f"GRANT {right} ON {table} TO {user}" for right, table in denied)
    return [f"Database {database.using!r} does not let its user do what a worker must: {grants}."]


def warnings(database: Database) -> list[str]:
    """Return what to set in DATABASES: a SQLite file that several processes use needs WAL and IMMEDIATE."""
    connection = database.connection
    if not isinstance(connection, SqliteWrapper) or connection.is_in_memory_db():
        return []
    options = connection.settings_dict["OPTIONS"]
    wanted = []
    with database.available():
        ((journal,),) = database.rows("PRAGMA journal_mode")
    if journal != "wal":
        wanted.append('"init_command": "PRAGMA journal_mode=WAL"')
    if str(options.get("transaction_mode")).upper() != "IMMEDIATE":
        wanted.append('"transaction_mode": "IMMEDIATE"')
    if not wanted:
        return []
    return [
        _(
            'Where a site and workers share the SQLite file of database %(database)r, "database is locked" is near: '
            'give DATABASES["%(database)s"] the OPTIONS %(options)s.',
            database=database.using,
            options=", ".join(wanted),
        )
    ]
