"""`delayq audit` where the tables are all that there is."""

from pytest_django import Settings

from django_delayq import send_delay_message
from tests.commands.support import delayq
from tests.database.conftest import ALONE


def test_an_audit_misses_no_alarms_where_rows_are_their_own(settings: Settings, database: str) -> None:
    options = {"unknown_keys": "allow"}
    settings.DELAYQ = {"default": {"BROKER": ALONE, "DATABASE": database, "STORE": {}, "OPTIONS": options}}
    send_delay_message("k", 1, id="a", delay="2h")
    audit = delayq("audit")
    assert "pending 1" in audit
    assert "note" not in audit
