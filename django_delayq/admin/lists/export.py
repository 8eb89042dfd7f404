"""Stream a list as CSV or JSON lines. However long it is, only a page of rows and all primary keys are in memory."""

import csv
import json
import re
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext_lazy as _

from django_delayq.admin.access import alias_of, operator_of
from django_delayq.admin.bulk.jobs import is_all
from django_delayq.admin.lists.bounded import stopped_search
from django_delayq.admin.lists.kept_searches import PARAMETER, for_log, search_of
from django_delayq.admin.lists.search import all_with_data
from django_delayq.admin.log import Chosen, correct, log_selection
from django_delayq.admin.message.errors import hide_errors, may_view_errors
from django_delayq.admin.message.payload import may_view, payload_of
from django_delayq.admin.visibility import visible_rows
from django_delayq.core.lanes import priority_of, queue_of
from django_delayq.models import MessageRow
from django_delayq.support.audit import record

CHUNK = 50
"""How many rows are read at a time. It is small because each may have a large payload."""

_MARK = "\ufeff"
"""The byte order mark of a CSV file: without it Excel doesn't read UTF-8. The JSON lines, for programs, have none."""

_FIELDS = (
    "pk",
    "alias",
    "message_id",
    "key",
    "queue",
    "priority",
    "tag",
    "trace_id",
    "outcome",
    "due_at",
    "sent_at",
    "expires_at",
    "started_at",
    "ended_at",
    "failures",
    "crashes",
    "worker",
    "error",
    "fingerprint",
    "detail",
)
# A spreadsheet may split a line where the csv module did not: many take a semicolon or a tab for the end of a field.
_FORMULA = re.compile(r"""((?:^|[\r\n\t;])(?:["']|[^\S\r\n\t])*)([=+\-@＝＋－＠])""")


class _Echo:
    """A file for the csv module that returns what is written."""

    def write(self, value: str) -> str:
        return value


class _AsyncLines:
    """The lines for ASGI, many at a time: Django would make one list of the lines of a plain generator."""

    def __init__(self, lines: Generator[str]) -> None:
        self._lines = lines
        # Django calls `close` in the thread that uses the database, also if the client is gone. It would leave an async
        # generator to the garbage collector, which comes when the connection is closed.
        self.close = lines.close

    async def __aiter__(self) -> AsyncIterator[str]:
        while page := await sync_to_async(self._read)():
            yield "".join(page)

    def _read(self) -> list[str]:
        return list(islice(self._lines, CHUNK))


@admin.action(permissions=["view"], description=_("Export as CSV"))
def export_csv(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> StreamingHttpResponse:
    """Stream the selected rows as CSV. An apostrophe precedes what a spreadsheet would take for a formula."""
    line: Callable[[Any], str] = csv.writer(_Echo()).writerow  # returns what `write` returns
    head = _MARK + line([*_names(model_admin.model), "data"])
    records = _records(model_admin, request, rows)
    lines = (line([_defused(value) for value in each.values()]) for each in records)
    logged = _logged(model_admin, request, "Export as CSV", lines, head)
    return _download(model_admin, request, logged, "text/csv; charset=utf-8", "csv")


@admin.action(permissions=["view"], description=_("Export as JSON lines"))
def export_jsonl(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> StreamingHttpResponse:
    """Stream the selected rows as JSON lines."""
    lines = (json.dumps(each, ensure_ascii=False) + "\n" for each in _records(model_admin, request, rows))
    logged = _logged(model_admin, request, "Export as JSON lines", lines)
    return _download(model_admin, request, logged, "application/x-ndjson", "jsonl")


def _defused(value: Any) -> Any:
    return _FORMULA.sub(r"\1'\2", value) if isinstance(value, str) else value


def _records(model_admin: Any, request: HttpRequest, rows: QuerySet[Any]) -> Iterator[dict[str, Any]]:
    names = _names(model_admin.model)
    stopped = stopped_search(request) if is_all(request) else None
    pks = all_with_data(stopped.rows, stopped.text) if stopped else rows.values_list("pk", flat=True).iterator()
    for row in _rows_of(visible_rows(request.user, model_admin.model, alias_of(request)), pks):
        hide_errors(request, [row])
        yield {name: _plain(_value(row, name)) for name in names} | {"data": payload_of(row, request, None).text}


def _rows_of(visible: QuerySet[Any], pks: Iterator[int]) -> Iterator[MessageRow]:
    """Yield the `visible` rows with these primary keys, a page at a time, without those that have moved on.

    With one query for all, a MySQL client would hold all rows in memory.
    """
    while page := list(islice(pks, CHUNK)):
        by_pk = visible.in_bulk(page)
        yield from (by_pk[pk] for pk in page if pk in by_pk)


def _logged(model_admin: Any, request: HttpRequest, did: str, lines: Iterable[str], head: str = "") -> Generator[str]:
    """Log who exports what, and whether with payloads and errors. Return the head and the lines.

    When the lines end, or nobody reads on, the number of lines read is logged. It may be below the number of rows
    chosen, because rows may be hidden or move on.
    """
    chosen = Chosen(alias_of(request), _asked(request))
    payloads = "with" if may_view(request) else "without"
    errors = "with" if may_view_errors(request) else "without"
    facts = {"payloads": payloads, "errors": errors, "filter": chosen.words() or "*"}
    say = partial(record, operator_of(request), "export", chosen.alias, of=model_admin.opts.model_name, **facts)
    tail = f"{payloads} payloads, {errors} errors"
    entry = log_selection(request.user.pk, model_admin.model, chosen, f"{did}: begun, {tail}")
    say(what="begun")

    def read() -> Generator[str]:
        count = 0
        try:
            if head:
                yield head
            for line in lines:
                count += 1
                yield line
        finally:
            correct(entry.pk, f"{did}: {count}, {tail}")
            say(what="ended", rows=count)

    return read()


def _asked(request: HttpRequest) -> dict[str, str]:
    """Return the filter of the list, or the ticked rows. A value that is searched for in payloads is hashed."""
    if not is_all(request):
        return {"pk": ",".join(request.POST.getlist(ACTION_CHECKBOX_NAME))}
    asked = request.GET.dict()
    return asked | ({PARAMETER: for_log(search_of(request))} if PARAMETER in asked else {})


def _names(model: type[MessageRow]) -> list[str]:
    has = {"pk", "priority", *(field.name for field in model._meta.get_fields())}
    return [name for name in _FIELDS if name in has]


def _value(row: MessageRow, name: str) -> Any:
    """Return the value of a column. The row's `queue` is a lane, which says the queue and the priority."""
    if name == "queue":
        return queue_of(row.queue)
    return priority_of(row.queue) if name == "priority" else getattr(row, name)


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if hasattr(value, "isoformat") else value


def _download(
    model_admin: Any, request: HttpRequest, lines: Generator[str], content_type: str, suffix: str
) -> StreamingHttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{model_admin.model._meta.db_table}.{suffix}"'}
    content = _AsyncLines(lines) if isinstance(request, ASGIRequest) else lines
    return StreamingHttpResponse(content, content_type=content_type, headers=headers)
