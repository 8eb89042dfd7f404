"""The page of all messages: what each list has of them, and one search through all lists."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_delayq import cancel_delay_messages
from django_delayq.admin.lists import bounded, messages, search
from django_delayq.models import ErrorMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import bury, finish, page, pk_of, send, text_of, url
from tests.admin.tenants import FOREIGN, OWN

PAGE = url("anymessage")
ALL = "view_readymessage", "view_finishmessage", "view_errormessage"


def _ids(html: str) -> list[str]:
    """Return the ids on the page, sorted."""
    return sorted(re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', html))


def _found(client: Client, text: str) -> str:
    """Return what the page shows after its search box was sent."""
    return text_of(client.post(PAGE, {"q": text}, follow=True))


@pytest.fixture
def one_of_each(broker: DatabaseBackend) -> None:
    """An order with a message in each list, and a message of another order."""
    finish(broker, "order:1:paid")
    bury(broker, "order:1:mail", data={"to": "a@example.com"})
    send("order:1:cancelled", delay="1h")
    assert cancel_delay_messages("order:1:cancelled")
    send("order:1:close", delay="1h", tag="customer:7")
    send("order:2:close", delay="2h")


def test_the_messages_of_all_lists_are_on_one_page_with_their_states(
    one_of_each: None, staff: Callable[..., Client]
) -> None:
    shown = text_of(staff(*ALL).get(PAGE))
    for words in "Open messages (2)", "Failed messages (1)", "Finished messages (2)":
        assert words in shown.replace("( ", "(").replace(" )", ")")
    for words in "order:1:paid", "finished", "order:1:mail", "failed for good", "cancelled", "order:2:close", "pending":
        assert words in shown


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("order:1:mail", ["order:1:mail"]),
        ("customer:7", ["order:1:close"]),
        ("order:1:*", ["order:1:cancelled", "order:1:close", "order:1:mail", "order:1:paid"]),
        ("data.to=a@example.com", ["order:1:mail"]),
        ("order:3", []),
    ],
)
def test_one_search_finds_a_message_whatever_became_of_it(
    one_of_each: None, superuser: Client, text: str, ids: list[str]
) -> None:
    assert _ids(page(superuser.post(PAGE, {"q": text}, follow=True))) == ids


def test_a_message_and_the_rest_of_its_list_are_a_click_away(
    one_of_each: None, superuser: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SHOWN", 1)
    html = page(superuser.get(PAGE, {"q": "order:*"}))
    assert url("errormessage", pk_of(database, "order:1:mail", ErrorMessage), "change") in html
    (rest,) = re.findall(r'href="([^"]*/readymessage/\?[^"]*)">Open messages', html)
    assert "order:2:close" not in _ids(html)
    assert "order:2:close" in text_of(superuser.get(rest.replace("&amp;", "&")))


def test_the_dashboard_leads_to_the_page(one_of_each: None, superuser: Client) -> None:
    assert f'<form method="post" action="{PAGE}"' in page(superuser.get("/admin/delayq/"))
    assert f'href="{PAGE}"' in page(superuser.get("/admin/"))


def test_only_the_lists_that_a_user_may_see_are_shown(one_of_each: None, staff: Callable[..., Client]) -> None:
    client = staff("view_errormessage")
    shown = _found(client, "order:*")
    assert "order:1:mail" in shown
    assert "order:1:close" not in shown
    assert "Open messages" not in shown
    assert staff("rescue_message").get(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == 302


def test_only_the_rows_that_a_user_may_see_are_shown(
    tenants: DatabaseBackend, stored_delayq: object, client: Client
) -> None:
    client.force_login(User.objects.create_superuser(OWN))
    shown = text_of(client.get(PAGE))
    for id in "waits", "failed", "finished":
        assert f"{OWN}-{id}" in shown
    assert FOREIGN not in shown
    assert re.findall(r"\( ?(\d+) ?\)", shown) == ["1", "1", "1"]


def test_a_search_that_is_refused_says_so_once_and_shows_nothing(
    one_of_each: None, staff: Callable[..., Client]
) -> None:
    shown = _found(staff(*ALL), "data.to=a@example.com")
    assert shown.count("you may not look into payloads") == 1
    assert "order:1:mail" not in shown


def test_a_search_that_stopped_in_one_list_says_so_of_that_list_alone(
    broker: DatabaseBackend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCHED", 1)
    for id in "abc":
        send(id, {"order": 1}, delay="1h")
    bury(broker, "d", data={"order": 1})
    shown = _found(superuser, "data.order=1")
    assert shown.count("stopped there") == 1


def test_a_list_that_takes_too_long_leaves_the_page_whole(
    one_of_each: None, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "LIMIT_S", 0.000001)
    assert superuser.get(PAGE).status_code == 200


@pytest.mark.parametrize("query", ["?p=7", "?o=1", "?data__contains=a", "?e=1", "?q=%00", "?q=a&q=b", "?alias=nobody"])
def test_a_strangers_address_breaks_nothing(one_of_each: None, superuser: Client, query: str) -> None:
    assert superuser.get(f"{PAGE}{query}").status_code == 200
