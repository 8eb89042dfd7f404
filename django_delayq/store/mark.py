"""Read and set the mark of a broker: which store its alarms, its cursor and its workers belong to.

A broker works for one store under each prefix. The first store whose worker starts there marks it with its identity, a
random row of `delayq_identity`. Another row of that table remembers each broker that bore the mark of this store. There
another store's mark is a mistake or forged: anybody who can write to the broker can write one. So it must not keep this
store's workers from starting. They leave the broker alone, and go on from the tables.
"""

import secrets
from collections.abc import Iterable
from hashlib import sha256
from time import monotonic

from django_delayq.brokers.base import Window
from django_delayq.conf import Alias
from django_delayq.core.errors import ForeignMark
from django_delayq.models import StoreIdentity
from django_delayq.store.database import Database
from django_delayq.support.translatable import text as _
from django_delayq.support.validation import MAX_NAME

FRESH_S = 10.0
"""For so many seconds a mark that was read is not read again by those who only check it."""


class Mark:
    """The mark of one alias's broker. A timer without a window reads this store's rows, and bears no mark."""

    def __init__(self, database: Database, alias: Alias, window: Window | None, places: Iterable[str]) -> None:
        self._database = database
        self._alias = alias
        self._window = window
        self._names = [_name_of_place(alias, place) for place in sorted(places)]
        self._remembered = ""
        """The identity for which the table is known to remember the broker."""
        self._ours = ""
        self._foreign = ""
        self._fresh_until = 0.0

    def set(self) -> None:
        """Mark the broker as this store's if it has no mark, because it is new or has lost its data.

        Raises `ForeignMark` if it bears another store's.
        """
        if self._window is None:
            return
        with self._database.available():
            ours = identify(self._database)
        owner = self._window.owner(ours)
        self._ours = ours
        self._note(self._window, owner)
        if self._foreign:
            raise ForeignMark(self._foreign)
        if owner and self._remembered != ours:
            self._remember(ours)

    def check(self, *, within_s: float = 2.0) -> None:
        """Raise `ForeignMark` if the broker bears another store's mark, or did a moment ago. This sets no mark."""
        if self._window is None:
            return
        if monotonic() >= self._fresh_until:
            self._note(self._window, self._window.owner(within_s=within_s))
        if self._foreign:
            raise ForeignMark(self._foreign)

    def is_known(self) -> bool:
        """Return whether the broker once bore the mark of this store, as the database remembers."""
        with self._database.available():
            ours = identify(self._database)
            rows = StoreIdentity.objects.using(self._database.using)
            return rows.filter(alias__in=self._names, identity=_random_part(ours)).exists()

    def _note(self, window: Window, owner: str) -> None:
        """Note the mark that was read."""
        if owner not in ("", self._ours):
            with self._database.available():
                self._ours = time_and_identity(self._database)[1]
        self._foreign = foreign_mark(self._alias, window, owner, self._ours)
        self._fresh_until = monotonic() + FRESH_S

    def _remember(self, ours: str) -> None:
        """Remember that the broker bears this store's mark."""
        rows = StoreIdentity.objects.using(self._database.using)
        with self._database.available():
            rows.bulk_create(
                [StoreIdentity(alias=name, identity=_random_part(ours)) for name in self._names], ignore_conflicts=True
            )
        self._remembered = ours


def _name_of_place(alias: Alias, place: str) -> str:
    """Return what stands in place of an alias's name in the row for a broker. It differs for another layout of keys."""
    digest = sha256(f"{alias.name} {alias.options.shards} {place}".encode()).hexdigest()
    return f"{digest[:16]} {place}"[:MAX_NAME]


def identify(database: Database) -> str:
    """Return the identity that tells this store from all others. The first call creates it."""
    identity = time_and_identity(database)[1]
    if identity:
        return identity
    rows = StoreIdentity.objects.using(database.using)
    with database.telling_what_it_lacks():
        row, _made = rows.get_or_create(alias=database.alias, defaults={"identity": secrets.token_hex(8)})
    return str(row)


def time_and_identity(database: Database) -> tuple[int, str]:
    """Return the database's time and, by the same query, the store's identity; '' if nobody has created it yet."""
    found = "SELECT identity FROM delayq_identity WHERE alias = %s"
    ((now_ms, identity),) = database.rows(f"SELECT {database.dialect.now}, ({found})", [database.alias])
    return int(now_ms), f"{database.alias} {identity}" if identity else ""


def _random_part(identity: str) -> str:
    """Return an identity without the name of the alias."""
    return identity.rpartition(" ")[2]


def foreign_mark(alias: Alias, window: Window, owner: str, ours: str) -> str:
    """Return a line that says what to do about another store's mark; "" if `owner` is no mark, or ours."""
    if owner in ("", ours):
        return ""
    return _(
        "Another site uses prefix %(prefix)r here: the alarms are those of store %(owner)r, not of this one. Give "
        'this one a prefix of its own, DELAYQ["%(alias)s"]["OPTIONS"]["prefix"]; or, if that store is gone for '
        "good (this database was emptied or made again) or nobody knows it, delete %(key)s.",
        prefix=alias.options.prefix,
        owner=owner,
        alias=alias.name,
        key=window.owner_key,
    )
