"""Two tenants of one site, and the hook by which each sees only its own messages."""

from typing import Any

import pytest
from django.db.models import QuerySet

from django_delayq.store import DatabaseBackend
from tests.admin.support import bury, send

OWN, FOREIGN, SECRET = "anna", "benjamin", "sesame"

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite_database"], indirect=True, ids=["sqlite"])
"""For a test of which no part depends on the database."""


def of_own_tenant(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """The hook of a site whose messages have their tenant as tag: a user with a tenant's name sees that one's."""
    return rows.filter(tag=user.username) if user.username in (OWN, FOREIGN) else rows


def send_for_both(broker: DatabaseBackend) -> None:
    """Leave a message of each tenant in each table."""
    for tag, value in ((OWN, "hers"), (FOREIGN, SECRET)):
        options: dict[str, Any] = {"data": {"v": value}, "key": f"key.{tag}", "tag": tag}
        send(f"{tag}-waits", delay="1h", **options)
        bury(broker, f"{tag}-failed", fingerprint=f"Error of {tag}", error=f"{tag}: no", **options)
        send(f"{tag}-finished", **options)
    broker.queue.cancel([f"{OWN}-finished", f"{FOREIGN}-finished"])
