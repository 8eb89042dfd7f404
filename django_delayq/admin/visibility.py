"""Narrow what a user sees, and moves, to the rows that the site's hook `OPTIONS["rows_for"]` leaves."""

from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, InterfaceError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_delayq.admin.access import alias_of
from django_delayq.admin.bulk.changes import TABLES
from django_delayq.conf import get_alias, valid_aliases
from django_delayq.models import MessageRow, ReadyMessage
from django_delayq.support.logging import logger


def visible_rows(user: Any, model: type[MessageRow], alias: str) -> QuerySet[Any]:
    """Return the rows of a table that the user may see."""
    return narrowed(user, _all_rows(model, alias), alias)


def sees_all(user: Any, alias: str) -> bool:
    """Return whether the hook leaves this user every message of the alias.

    The hook says so by returning the very query that it was given. Other users are shown no figures of all messages.
    The answer is kept on the user object, and so for one request, because a page asks often and the hook may query a
    database.
    """
    if get_alias(alias).options.rows_for is None:
        return True
    known: dict[str, bool] | None = getattr(user, "delayq_sees_all", None)
    if known is None:
        known = user.delayq_sees_all = {}
    if alias not in known:
        known[alias] = all(
            narrowed(user, rows, alias) is rows for rows in (_all_rows(model, alias) for model in TABLES)
        )
    return known[alias]


def check_sees_all(request: HttpRequest) -> None:
    """Raise `PermissionDenied` if the user may see only a part of the messages, for an action that concerns all."""
    if not sees_all(request.user, alias_of(request)):
        raise PermissionDenied


def narrowed(user: Any, rows: QuerySet[Any], alias: str) -> QuerySet[Any]:
    """Return the part of `rows`, which are messages of the alias, that the user may see.

    Raises `PermissionDenied` if the hook fails, so that nobody sees any. Errors of the hook's database are passed on.
    """
    path = get_alias(alias).options.rows_for
    if path is None:
        return rows
    try:
        found = _asked(path, user, rows)
        # A query that the hook itself made has the rows of all aliases. The pages choose themselves what they join.
        return found if found is rows else found.filter(alias=alias).select_related(None)
    except (DatabaseError, InterfaceError):
        raise  # the hook asked a database that is away, which the page tells
    except Exception as error:
        logger.exception('DELAYQ["%s"]["OPTIONS"]["rows_for"]=%r failed, so no message is shown.', alias, path)
        raise PermissionDenied('OPTIONS["rows_for"] failed; the log says why.') from error


@register(Tags.database, deploy=True)
def check_rows_for(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check what each hook returns for an anonymous user (E007). One that fails for such a user is skipped."""
    found: list[CheckMessage] = []
    for alias in valid_aliases():
        path = alias.options.rows_for
        if path is None or alias.database not in (databases or ()):
            continue
        try:
            _asked(path, AnonymousUser(), _all_rows(ReadyMessage, alias.name))
        except ImproperlyConfigured as error:
            text = f'DELAYQ["{alias.name}"]["OPTIONS"]["rows_for"]: {error}'
            found.append(Error(text, hint="Until it does, nobody sees a message in the admin.", id="delayq.E007"))
        except Exception:  # noqa: BLE001, S112  it is the site's code, and may need a user of the site
            continue
    return found


def _asked(path: str, user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return what the hook `path` returns. Raises `ImproperlyConfigured` for a result that the pages can't filter."""
    found = import_string(path)(user, rows)
    if fault := _fault_of(found, rows):
        raise ImproperlyConfigured(
            f"{path} returned {fault}, which the admin can't filter. Return rows.filter(…), rows.none(), or rows "
            "itself for a user who may see all."
        )
    return found  # type: ignore[no-any-return]  # a QuerySet, or there was a fault


def _fault_of(found: Any, rows: QuerySet[Any]) -> str:
    """Return in words why the result of a hook can't be filtered like `rows`; empty if it can."""
    if not isinstance(found, QuerySet):
        return f"{type(found).__name__} and no QuerySet"
    query = found.query
    faults = {
        f"a QuerySet of {found.model.__name__} in place of {rows.model.__name__}": found.model is not rows.model,
        f"rows of the database {found.db!r} in place of {rows.db!r}": found.db != rows.db,
        "a slice": query.is_sliced,
        f"the result of {query.combinator}()": query.combinator,
        "the result of values() or values_list()": found._fields is not None,  # type: ignore[attr-defined]  # private
        "the result of distinct() with fields": query.distinct_fields,
    }
    return next((fault for fault, is_so in faults.items() if is_so), "")


def _all_rows(model: type[MessageRow], alias: str) -> QuerySet[Any]:
    return model._default_manager.using(get_alias(alias).database).filter(alias=alias)
