"""A database that is away, of an alias with its own: its pages lead to the dashboard, which says so."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.test import Client
from pytest_django import Settings

from tests.admin.support import page, text_of, url
from tests.databases import registered

INDEX = "/admin/delayq/"


@pytest.fixture
def away(settings: Settings, stored_delayq: dict[str, Any], database: str) -> Iterator[str]:
    """A database on the same server that is not there. "mail" is the alias with its store in it."""
    with registered(f"away-{uuid4().hex}", {**connections.settings[database], "NAME": "/missing/db"}) as name:
        settings.DELAYQ = {"default": stored_delayq, "mail": {**stored_delayq, "DATABASE": name}}
        yield name


@pytest.mark.parametrize("address", [INDEX, url("readymessage", "dashboard")])
def test_the_dashboard_names_the_database_that_is_away(away: str, superuser: Client, address: str) -> None:
    assert f"Database '{away}':" in text_of(superuser.get(address, {"alias": "mail"}))
    assert away not in page(superuser.get(address, {"alias": "default"}))


@pytest.mark.parametrize(
    "address",
    [
        url("readymessage"),
        url("errormessage"),
        url("errormessage", "groups"),
        url("finishmessage", 1, "change"),
        url("errormessage", 1, "payload"),
        url("reportrow"),
    ],
)
def test_what_can_not_be_read_leads_to_the_dashboard(away: str, superuser: Client, address: str) -> None:
    response = superuser.get(address, {"alias": "mail"})
    assert (response.status_code, response["Location"]) == (302, f"{INDEX}?alias=mail")
    assert f"Database '{away}':" in text_of(superuser.get(response["Location"]))
    assert superuser.get(url("readymessage"), {"alias": "default"}).status_code == 200


def test_what_was_typed_is_shown_again_where_it_can_not_be_saved(away: str, superuser: Client) -> None:
    typed = {"payload": "a long payload", "seen": ""}
    shown = text_of(superuser.post(url("errormessage", 1, "payload", query="?alias=mail"), typed))
    assert "a long payload" in shown
    assert f"Database '{away}':" in shown
