"""Remove the rows that belong to messages: their tags after the first, and the rules of their due times."""

from collections.abc import Sequence

from django_delayq.brokers.base import BATCH, pages
from django_delayq.store.database import Database
from django_delayq.store.sql.stepwise import delete


def remove(database: Database, pks: Sequence[int]) -> None:
    """Remove the tags and rules of messages that the caller's transaction has locked.

    They are looked for first, because most messages have none: a DELETE that finds nothing may lock gaps on MySQL.
    """
    for page in pages(pks, BATCH):
        of_tags, of_rules = database.dialect.among("message_pk", page), database.dialect.among("id", page)
        found = database.rows(
            f"SELECT 'delayq_tag', id FROM delayq_tag WHERE {of_tags.text}"
            f" UNION ALL SELECT 'delayq_rule', id FROM delayq_rule WHERE {of_rules.text}",
            [*of_tags.parameters, *of_rules.parameters],
        )
        for table in ("delayq_rule", "delayq_tag"):
            for ids in pages(sorted(id for name, id in found if name == table), BATCH):
                delete(database, ids, table)
