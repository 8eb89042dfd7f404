"""Who may see errors, which quote payloads: without `view_error` a viewer gets the exception's class only."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.brokers.base import SettleAction
from django_delayq.core.transitions import without_values
from django_delayq.models import ErrorMessage, ReadyMessage, ReportRow
from django_delayq.store import DatabaseBackend
from tests.admin.support import LISTS, bury, claim, confirm, page, pk_of, send, settle, shown_ids, text_of, url

CARD = "4111"
ERROR = f"CardError: {CARD} is declined"
TRACEBACK = f"Traceback (most recent call last):\nCardError: {CARD} is declined"


@pytest.fixture
def database(sqlite_database: str) -> str:
    """Permissions don't depend on the database."""
    return sqlite_database


@pytest.fixture
def failed(broker: DatabaseBackend, database: str) -> None:
    """A message that failed for good after it was run again, one that waits for another try, and a report."""
    bury(broker, "failed", error=ERROR, detail=TRACEBACK, fingerprint="CardError in shop.pay")
    broker.queue.rescue(["failed"])
    settle(broker, claim(broker), SettleAction.BURY, error=ERROR, detail=TRACEBACK, fingerprint="CardError in shop.pay")
    send("waits")
    settle(broker, claim(broker), SettleAction.RETRY, error=ERROR, detail=TRACEBACK)
    figures = dict.fromkeys(("messages", "finished", "failed", "cancelled", "retried"), 1)
    names = {"queue": "default", "key": "order.close", "fingerprint": "CardError in shop.pay"}
    ReportRow.objects.using(database).create(alias="default", hour=0, **figures, **names)


def seen(client: Client, database: str) -> dict[str, str]:
    """All that shows errors."""
    pk = pk_of(database, "failed", ErrorMessage)
    shown = {
        "list": text_of(client.get(url("errormessage"))),
        "waiting": text_of(client.get(url("readymessage"))),
        "page": text_of(client.get(url("errormessage", pk, "change"))),
        "waiting page": text_of(client.get(url("readymessage", pk_of(database, "waits"), "change"))),
        "report": text_of(client.get(url("reportrow"))),
    }
    for action in ("export_csv", "export_jsonl"):
        response: Any = client.post(url("errormessage"), {"action": action, "_selected_action": [str(pk)]})
        shown[action] = response.getvalue().decode()
    return shown


LOOK = [*(f"view_{name}" for name in LISTS.values()), "view_reportrow", "rescue_message"]


@pytest.mark.usefixtures("failed")
def test_who_may_not_see_errors_sees_the_class_of_the_exception(staff: Callable[..., Client], database: str) -> None:
    for place, text in seen(staff(*LOOK), database).items():
        assert "CardError" in text, place
        for hidden in (CARD, "Traceback (most", "shop.pay"):
            assert hidden not in text, place


@pytest.mark.usefixtures("failed")
def test_who_may_sees_them(staff: Callable[..., Client], database: str) -> None:
    for place, text in seen(staff(*LOOK, "view_error"), database).items():
        assert ("shop.pay" if place == "report" else CARD) in text, place


@pytest.mark.usefixtures("failed")
def test_kinds_of_failures_are_for_those_who_may_see_errors(staff: Callable[..., Client]) -> None:
    of_kind = url("errormessage", query="?fingerprint=CardError+in+shop.pay")
    without, may = staff(*LOOK), staff(*LOOK, "view_error")
    assert without.get(url("errormessage", "groups")).status_code == 403
    assert "groups/" not in page(without.get(url("errormessage")))
    assert without.get(of_kind).status_code == 400
    assert may.get(url("errormessage", "groups")).status_code == 200
    assert shown_ids(may.get(of_kind)) == ["failed"]


@pytest.mark.usefixtures("failed")
def test_what_operators_did_names_errors_to_those_only_who_may_see_them(
    staff: Callable[..., Client], database: str
) -> None:
    without = staff(*LOOK)
    confirm(without, ErrorMessage, "rescue", [pk_of(database, "failed", ErrorMessage)])
    shown = text_of(without.get(url("readymessage", pk_of(database, "failed", ReadyMessage), "change")))
    assert "Rescued: CardError" in shown
    assert CARD not in shown


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("shop.<locals>.CardError: 4111", "shop.<locals>.CardError"),
        ("ValueError", "ValueError"),
        ("ValueError (the next try would be after it expires)", "ValueError"),
        ("its finish is refused: IntegrityError: 4111", "its finish is refused"),
        ("expired 5m ago", "expired 5m ago"),
        (
            "killed its worker 3 times: its process was killed by SIGKILL",
            "killed its worker 3 times: its process was killed by SIGKILL",
        ),
        ("somebody wrote 4111", "somebody"),
        ("", ""),
    ],
)
def test_of_an_error_the_class_and_our_own_words_are_left(error: str, shown: str) -> None:
    assert without_values(error) == shown
