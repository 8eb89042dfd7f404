"""A site's own AdminSite, its own templates, and what importing costs."""

import subprocess
import sys

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import path
from pytest_django import Settings

from django_delayq.admin import register
from django_delayq.models import ErrorMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import bury, page, pk_of

operations = admin.AdminSite("operations")
register(operations)
urlpatterns = [path("ops/", operations.urls)]


@pytest.mark.parametrize(
    "address", ["errormessage/", "errormessage/groups/", "errormessage/{pk}/change/", "readymessage/"]
)
def test_another_admin_site_links_to_itself(
    settings: Settings, broker: DatabaseBackend, superuser: Client, database: str, address: str
) -> None:
    settings.ROOT_URLCONF = "tests.admin.test_sites"
    bury(broker, "a", fingerprint="ValueError in shop")
    html = page(superuser.get(f"/ops/delayq/{address.format(pk=pk_of(database, 'a', ErrorMessage))}"))
    assert 'href="/ops/delayq/' in html
    assert '"/admin/' not in html


IMPORT = """
import django
from django.db.backends.base.base import BaseDatabaseWrapper
BaseDatabaseWrapper.ensure_connection = None
django.setup()
import tests.urls
"""


def test_importing_the_admin_connects_to_no_database() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_message_is_shown_on_a_site_that_leaves_out_other_lists(
    settings: Settings, broker: DatabaseBackend, superuser: Client, database: str
) -> None:
    settings.ROOT_URLCONF = "tests.admin.few_lists"
    bury(broker, "a", tag="order:42")
    pk = pk_of(database, "a", ErrorMessage)
    assert "/few/delayq/errormessage/?q=order%3A42" in page(superuser.get(f"/few/delayq/errormessage/{pk}/change/"))
    assert superuser.get("/few/delayq/errormessage/999/change/").status_code == 302
