"""Remove the ids and details of forgotten messages from Django's log, and from the messages of our own jobs."""

from collections.abc import Collection

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType

from django_delayq.admin.bulk import jobs
from django_delayq.admin.bulk.changes import TABLES
from django_delayq.admin.formatting import visible
from django_delayq.admin.log import forget_in

_PAGE = 2_000


def forget_entries(alias: str, ids: Collection[str], tag: str | None) -> int:
    """Remove the ids, the tag and the details of these messages of an alias from Django's log.

    Return the number of changed entries. Hashes stand in place of ids and tags. What was done, by whom and when stays.
    The log has no index by message, so all of it is read, a page at a time.
    """
    types = {each.pk for each in ContentType.objects.get_for_models(*TABLES).values()}
    ids = frozenset(ids).union(map(visible, ids))  # as entries have them
    words = _words(ids, tag)
    changed = last = 0
    while page := list(LogEntry.objects.filter(pk__gt=last).order_by("pk")[:_PAGE]):
        last = page[-1].pk
        forgotten = [entry for entry in page if entry.content_type_id in types and forget_in(entry, alias, ids, words)]
        LogEntry.objects.bulk_update(forgotten, ["object_repr", "change_message"])
        changed += len(forgotten)
    return changed


def forget_in_jobs(alias: str, ids: Collection[str], tag: str | None) -> int:
    """Replace the ids and the tag with hashes in the messages of jobs, and return how many messages that changed."""
    return jobs.forget(alias, _words(ids, tag))


def _words(ids: Collection[str], tag: str | None) -> frozenset[str]:
    return frozenset(ids if tag is None else (*ids, tag))
