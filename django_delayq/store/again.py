"""Send messages again that have finished or were cancelled, from the rows that are kept of them.

A message that is sent again has the id of the old one, its data and its header, and a row of its own. The old row
stays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from django_delayq.brokers.base import NewMessage, pages
from django_delayq.store import tags
from django_delayq.store.database import Database
from django_delayq.store.queries import header_of
from django_delayq.store.sql.dialect import MESSAGE
from django_delayq.support.validation import OWN

PAGE = 100
"""How many payloads are read at once: each may be large."""


def to_send_again(database: Database, ids: Sequence[str]) -> Iterator[list[NewMessage]]:
    """Yield the messages that ended last under the ids, as new ones, in the order of `ids`, page by page.

    Those of django-delayq itself are left out, and those of which no row is kept.
    """
    for page in pages(ids, PAGE):
        found = database.dialect.under_ids(database.alias, page, table="delayq_finish")
        rows = database.rows(f"SELECT r.ended_at, r.id, {MESSAGE} FROM {found.text}", found.parameters)
        newest = {row[0]: (pk, row) for _, pk, *row in sorted(rows, key=lambda row: row[:2])}
        headers = {id: header_of(tuple(row)) for id, (_, row) in newest.items()}
        tags.add_to(database, [(pk, headers[id]) for id, (pk, _) in newest.items()])
        yield [
            NewMessage(id, replace(headers[id], sent_ms=0, scheduled_ms=0), newest[id][1][3].encode())
            for id in page
            if id in newest and not headers[id].key.startswith(OWN)
        ]
