"""Narrow what a user sees, and moves, to the rows that the site's hook `OPTIONS["rows_for"]` leaves."""

from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, InterfaceError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_delayq.admin.access import alias_of
from django_delayq.admin.bulk.changes import TABLES
from django_delayq.conf import get_alias
from django_delayq.models import MessageRow
from django_delayq.support.logging import logger


def visible_rows(user: Any, model: type[MessageRow], alias: str) -> QuerySet[Any]:
    """Return the rows of a table that the user may see."""
    return narrowed(user, _all_rows(model, alias), alias)


def sees_all(user: Any, alias: str) -> bool:
    """Return whether the hook leaves this user every message of the alias.

    It says so by returning the very query that it was given. Others are not shown what counts the messages of all. The
    answer is kept with the user, and so for one request, because a page asks often and the hook may ask a database.
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
    """Raise `PermissionDenied` for an action that concerns the messages of all, if the user may see only a part."""
    if not sees_all(request.user, alias_of(request)):
        raise PermissionDenied


def narrowed(user: Any, rows: QuerySet[Any], alias: str) -> QuerySet[Any]:
    """Return those of `rows`, which are messages of the alias, that the user may see.

    Raises `PermissionDenied` if the hook fails: nobody then sees any.
    """
    path = get_alias(alias).options.rows_for
    if path is None:
        return rows
    try:
        hook: Callable[[Any, QuerySet[Any]], QuerySet[Any]] = import_string(path)
        found = hook(user, rows)
        if not (isinstance(found, QuerySet) and found.model is rows.model):
            raise TypeError(f"It returned {type(found).__name__}, and not the rows that it was given, or some of them.")
    except (DatabaseError, InterfaceError):
        raise  # the hook asked a database that is away, which the page tells
    except Exception as error:
        logger.exception('DELAYQ["%s"]["OPTIONS"]["rows_for"]=%r failed, so no message is shown.', alias, path)
        raise PermissionDenied('OPTIONS["rows_for"] failed; the log says why.') from error
    return found


def _all_rows(model: type[MessageRow], alias: str) -> QuerySet[Any]:
    return model._default_manager.using(get_alias(alias).database).filter(alias=alias)
