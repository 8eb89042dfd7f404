"""The identity of a store.

A timer holds the alarms of one store only, and its cursor and workers are that store's.
"""

import secrets

from django_delayq.brokers.base import Timer
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerRefused
from django_delayq.models import StoreIdentity
from django_delayq.store.database import Database
from django_delayq.support.texts import text as _


def identify(database: Database) -> str:
    """Return the identity that tells this store from all others. It is made up at the first call."""
    rows = StoreIdentity.objects.using(database.using)
    with database.telling_what_it_lacks():
        row, _made = rows.get_or_create(alias=database.alias, defaults={"identity": secrets.token_hex(8)})
    return str(row)


def look(database: Database) -> tuple[int, str]:
    """Return the database's time and, by the same query, the identity: '' where no worker has asked for it yet."""
    found = "SELECT identity FROM delayq_identity WHERE alias = %s"
    ((now_ms, identity),) = database.rows(f"SELECT {database.dialect.now}, ({found})", [database.alias])
    return int(now_ms), str(StoreIdentity(alias=database.alias, identity=identity)) if identity else ""


def own(database: Database, alias: Alias, timer: Timer) -> None:
    """Make this store the owner of the timer, if the timer has no owner: it is new, or has lost its data.

    Raises `BrokerRefused` if another store owns it.
    """
    with database.available():
        ours = identify(database)
    if problems := not_ours(alias, timer, timer.owner(ours), ours):
        raise BrokerRefused(problems[0])


def not_ours(alias: Alias, timer: Timer, owner: str, ours: str) -> list[str]:
    """Return one line that says how to mend a timer that another store owns; an empty list for any other timer."""
    if owner in ("", ours):
        return []
    return [
        _(
            "Another site uses prefix %(prefix)r here: the alarms are those of store %(owner)r, not of this one. Give "
            'this one a prefix of its own, DELAYQ["%(alias)s"]["OPTIONS"]["prefix"]; or, if that store is gone for '
            "good (this database was emptied or made anew), delete %(key)s.",
            prefix=alias.options.prefix,
            owner=owner,
            alias=alias.name,
            key=timer.owner_key,
        )
    ]
