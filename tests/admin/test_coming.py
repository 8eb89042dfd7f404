"""The line of a customer: the page of all messages, searched for a tag, shows what was, what is, and what comes."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_delayq import Batch, Sequence, Step
from django_delayq.admin.lists.coming import MOST
from django_delayq.api import sequences as api
from django_delayq.brokers.base import SettleAction
from django_delayq.models import ErrorMessage, ReadyMessage
from django_delayq.store import DatabaseBackend
from tests.admin.support import claim, page, pk_of, settle, text_of, url
from tests.admin.tenants import FOREIGN, OWN

PAGE = url("anymessage")
ALL = "view_readymessage", "view_finishmessage", "view_errormessage"


@pytest.fixture(autouse=True)
def _forgotten_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "by_alias", {})


def dunning() -> Sequence:
    return Sequence(
        "dunning", [Step("dunning.mail"), Step("dunning.call", "7d", priority=5), Step("dunning.<b>", "1d")]
    )


def found(client: Client, text: str) -> str:
    return text_of(client.post(PAGE, {"q": text}, follow=True))


def test_what_comes_is_shown_with_the_times(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    dunning().start(1, id="invoice:<17>", tag=("invoice:17", "customer:3"))
    settle(broker, claim(broker, "dunning.mail"), SettleAction.FINISH)
    client = staff(*ALL)
    for text in "customer:3", "invoice:17", "dunning:invoice:<17>@2":
        shown = found(client, text)
        assert "What comes" in shown
        assert "dunning invoice:<17> 3 dunning.<b>" in shown
    assert "dunning:invoice:<17>@1" in found(client, "customer:3")
    assert "What comes" not in found(client, "customer:4")
    assert "What comes" not in text_of(client.get(PAGE))
    assert "dunning.<b>" not in page(client.post(PAGE, {"q": "customer:3"}, follow=True))


def test_after_a_failed_step_no_time_is_named(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    dunning().start(1, id="x", tag="t")
    settle(broker, claim(broker, "dunning.mail"), SettleAction.BURY)
    client = staff(*ALL)
    assert "2 dunning.call default, priority 5 - dunning:x@1" in found(client, "t")
    pk = ErrorMessage.objects.using(broker.database.using).get().pk
    shown = text_of(client.get(url("errormessage", pk, "change")))
    assert "It is step 1 of 3 of the sequence 'dunning', started as 'x'." in shown
    assert "Once it was rescued and has finished, 'dunning.call' follows." in shown


def test_what_comes_is_shown_once_where_a_failed_step_was_stopped_and_begins_anew(
    broker: DatabaseBackend, staff: Callable[..., Client]
) -> None:
    s = dunning()
    s.start(1, id="x", tag="t")
    settle(broker, claim(broker, "dunning.mail"), SettleAction.BURY)
    s.stop("x")
    s.start(1, id="x", tag="t")
    shown = found(staff(*ALL), "t")
    assert shown.count("2 dunning.call default, priority 5") == 1
    assert "2 dunning.call default, priority 5 - dunning:x@1" not in shown


def test_who_does_not_see_the_message_does_not_see_what_comes(
    broker: DatabaseBackend, staff: Callable[..., Client]
) -> None:
    dunning().start(1, id="x", tag="t")
    assert "What comes" in found(staff("view_readymessage"), "t")
    assert "What comes" not in found(staff("view_finishmessage", "view_errormessage"), "t")


def test_a_tenant_does_not_see_what_comes_for_another(tenants: DatabaseBackend) -> None:
    for tenant in (OWN, FOREIGN):
        dunning_of = Sequence(f"of {tenant}", [Step("a"), Step("b")])
        dunning_of.start(1, id="x", tag=(tenant, "shared"))
    client = Client()
    client.force_login(User.objects.create_superuser(OWN))
    assert f"of {OWN} x 2 b" in found(client, "shared")
    assert f"of {FOREIGN}" not in found(client, "shared")
    assert "What comes" not in found(client, FOREIGN)


def test_a_message_of_the_line_leads_to_it(broker: DatabaseBackend, database: str, superuser: Client) -> None:
    dunning().start(1, id="x", tag="t")
    html = page(superuser.get(url("readymessage", pk_of(database, "dunning:x@1"), "change")))
    assert f'href="{PAGE}?q=t"' in html
    assert "It is step 1 of 3 of the sequence &#x27;dunning&#x27;" in html
    assert "Then &#x27;dunning.call&#x27; follows, at " in html


def test_a_stopped_sequence_is_told(broker: DatabaseBackend, database: str, superuser: Client) -> None:
    s = dunning()
    s.start(1, id="x", tag="t")
    claim(broker, "dunning.mail")
    s.stop("x")
    address = url("readymessage", pk_of(database, "dunning:x@1"), "change")
    assert "The sequence was stopped: nothing follows" in page(superuser.get(address))
    assert "What comes" not in found(superuser, "t")
    s.start(1, id="x", tag="t")
    assert "it begins anew when this message has ended" in page(superuser.get(address))
    assert "1 dunning.mail" in found(superuser, "t")


def send_batch(*tags: str, on_done: str = "import.done") -> Batch:
    with Batch(on_done=on_done, tag=tags, priority=5) as batch:
        for number in range(3):
            batch.send("import.row", number)
    return batch


def test_what_follows_a_batch_is_shown(broker: DatabaseBackend, staff: Callable[..., Client]) -> None:
    batch = send_batch("customer:3", 'of "Zoë"')
    other = send_batch("customer:31", on_done="other.done")
    settle(broker, claim(broker, "import.row"), SettleAction.FINISH)
    client = staff(*ALL)
    for text in "customer:3", 'of "Zoë"', batch.id, f"{batch.id}/000000002":
        shown = found(client, text)
        assert f"{batch.id} 2 of 3 left import.done default, priority 5 - {batch.id}/000000002" in shown
        assert other.id not in shown
    assert "What comes" not in found(client, "CUSTOMER:3")
    assert "What comes" in found(staff("view_readymessage"), "customer:3")
    assert "What comes" not in found(staff("view_finishmessage", "view_errormessage"), "customer:3")
    for each in ReadyMessage.objects.using(broker.database.using).filter(message_id__startswith=batch.id):
        broker.queue.cancel([each.message_id])
    assert "What comes" not in found(client, "customer:3")


def test_the_newest_batches_come_first(broker: DatabaseBackend, superuser: Client) -> None:
    ids = [send_batch("t").id for _ in range(MOST + 1)]
    shown = found(superuser, "t")
    assert [id for id in sorted(ids, key=shown.find) if f"{id} 3 of 3 left" in shown] == ids[:0:-1]


def test_the_batches_of_other_tenants_take_no_place_of_ones_own(tenants: DatabaseBackend) -> None:
    for tenant in (OWN, *[FOREIGN] * (MOST + 1)):
        with Batch(on_done=f"done of {tenant}", tag="shared") as batch:
            batch.send("a", 1, tag=tenant)
    client = Client()
    client.force_login(User.objects.create_superuser(OWN))
    assert f"done of {OWN}" in found(client, "shared")


def test_a_tenant_does_not_see_what_follows_the_batch_of_another(tenants: DatabaseBackend) -> None:
    for tenant in (OWN, FOREIGN):
        with Batch(on_done=f"done of {tenant}", tag="shared") as batch:
            batch.send("a", 1, tag=tenant)
    client = Client()
    client.force_login(User.objects.create_superuser(OWN))
    shown = found(client, "shared")
    assert f"done of {OWN}" in shown
    assert f"done of {FOREIGN}" not in shown
