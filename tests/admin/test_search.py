"""All that a search in payloads would find are moved, also where the search of the list stopped."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.admin import jobs, limits, search, selection
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import StoredBroker
from django_delayq.testing import run_due
from tests.admin.support import ask, bury, confirm, ids_in, pk_of, text_of


@pytest.mark.parametrize("limit", [(search, "SEARCHED"), (limits, "FOUND")])
def test_all_that_a_search_in_payloads_would_find_are_moved_though_it_stopped(
    broker: StoredBroker,
    registry: None,
    superuser: Client,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    limit: tuple[Any, str],
) -> None:
    for number in range(7):
        bury(broker, f"a{number}", data={"order": number % 2})
    bury(broker, "other", data={"order": 1}, key="sms.send")
    monkeypatch.setattr(*limit, 2)
    monkeypatch.setattr(selection, "LOOKED", 3)
    jobs.register("default")
    options: dict[str, Any] = {"all_that_match": True, "query": "?key=order.close&q=data.order=1"}
    one = [pk_of(database, "a5", ErrorMessage)]
    question = text_of(ask(superuser, ErrorMessage, "rescue", one, **options))
    assert "every one of which it looks through" in question
    assert "A worker does this in the background" in question
    job = confirm(superuser, ErrorMessage, "rescue", one, **options)
    (address, _), *_ = job.redirect_chain
    assert "In all, when it began 7" in text_of(job)
    run_due()
    over = text_of(superuser.get(address))
    assert "Moved 3" in over
    assert "Payloads looked through 7" in over
    assert ids_in(database, ErrorMessage) == {"a0", "a2", "a4", "a6", "other"}


def test_who_may_not_look_into_payloads_moves_nothing_by_them(
    broker: StoredBroker, staff: Callable[..., Client], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCHED", 1)
    bury(broker, "a", "b", data={"order": 1})
    client = staff("view_errormessage", "rescue_message")
    one = [pk_of(database, "a", ErrorMessage)]
    confirm(client, ErrorMessage, "rescue", one, all_that_match=True, query="?q=data.order=1")
    assert ids_in(database, ErrorMessage) == {"a", "b"}
    assert ids_in(database, ReadyMessage) == set()
