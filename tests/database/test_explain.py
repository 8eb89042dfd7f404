"""`delayq explain` where the tables are all that there is."""

import pytest
from pytest_django import Settings

from django_delayq import send_delay_message
from tests.commands.support import delayq
from tests.database.conftest import ALONE


@pytest.mark.parametrize("delay", ["0s", "2h"])
def test_a_row_is_its_own_alarm(settings: Settings, database: str, delay: str) -> None:
    options = {"unknown_keys": "allow"}
    settings.DELAYQ = {"default": {"BROKER": ALONE, "DATABASE": database, "STORE": {}, "OPTIONS": options}}
    send_delay_message("k", 1, id="a", delay=delay)
    assert "alarm: none is kept: the row is its own alarm\n" in delayq("explain", "a")
