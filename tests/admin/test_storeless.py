"""Without a store the dashboard lists what the broker carries that somebody may have to see to."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django import Settings

from django_delayq.brokers import get_backend
from django_delayq.brokers.base import Backend, ClaimRequest, Header, NewMessage, SettleAction, WorkerInfo
from django_delayq.core.message import State
from tests.admin.support import page, text_of, url
from tests.brokers.rig import settlement

INDEX = "/admin/delayq/"
MOVE = url("readymessage", "dashboard", "storeless")
STORELESS = import_module("django_delayq.monitor.storeless")  # the package has its function under that name
FAR = "redis://127.0.0.1:1/0"


@pytest.fixture
def broker(settings: Settings, db: None) -> Backend:
    """A broker that carries whole messages."""
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    return get_backend()


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Logs in a member of staff with these permissions of ours."""

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user(f"staff {User.objects.count()}", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="delayq", codename__in=codenames))
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def superuser(db: None) -> Client:
    """A client of somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def send(broker: Backend, *ids: str, key: str = "k") -> None:
    broker.queue.enqueue([NewMessage(id, Header("mail", key), b"1", at_ms=0) for id in ids])


def end(broker: Backend, id: str, verb: SettleAction, **ending: Any) -> None:
    """A message that was sent, claimed and settled so."""
    send(broker, id)
    (claimed,) = broker.queue.claim([ClaimRequest("mail", "k", 1)], lease_ms=60_000, worker="w").messages
    assert broker.queue.apply([settlement(claimed, verb, **ending)]) == [True]


def listed(response: Any) -> dict[str, list[str]]:
    """The ids in each list."""
    sections = re.findall(r'<section id="delayq-(buried|retried|parked)".*?</section>', page(response), re.DOTALL)
    found = {}
    for name in sections:
        (section,) = re.findall(rf'<section id="delayq-{name}".*?</section>', page(response), re.DOTALL)
        found[name] = re.findall(r'<th scope="row">([^<]*)</th>', section)
    return found


def states(broker: Backend, *ids: str) -> Sequence[State | None]:
    found = [broker.queue.get(id) for id in ids]
    return [info.state if info else None for info in found]


def test_what_is_buried_retried_and_parked_is_listed(broker: Backend, superuser: Client) -> None:
    end(broker, "buried", SettleAction.BURY, error="ValueError: no", detail="Traceback: here", failed=True)
    end(broker, "retried", SettleAction.RETRY, delay_ms=60_000, error="OSError: no")
    send(broker, "parked", key="other")
    broker.presence.heartbeat(WorkerInfo("w", ["mail"], ["k"], 0, 0))
    response = superuser.get(INDEX)
    assert listed(response) == {"buried": ["buried"], "retried": ["retried"], "parked": ["parked"]}
    for said in ("ValueError: no", "Traceback: here", "OSError: no"):
        assert said in text_of(response)


def test_who_may_not_see_errors_sees_the_class_of_the_exception(broker: Backend, staff: Callable[..., Client]) -> None:
    end(broker, "buried", SettleAction.BURY, error="CardError: 4111", detail="Traceback: 4111", failed=True)
    shown = text_of(staff("view_errormessage").get(INDEX))
    assert "CardError" in shown
    assert "4111" not in shown


@pytest.mark.parametrize("kind", ["buried", "retried", "parked"])
def test_all_are_seen_page_by_page(
    broker: Backend, superuser: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(STORELESS, "PAGE", 2)
    names = [f"{kind} {number}" for number in range(5)]
    for name in names:
        FILL[kind](broker, name)
    seen, address = [], INDEX
    while address:
        response = superuser.get(address)
        seen.append(listed(response)[kind])
        address = pages_beside(response, kind)["next"]
    assert [len(each) for each in seen] == [2, 2, 1]
    assert sorted(id for each in seen for id in each) == names
    assert listed(superuser.get(pages_beside(response, kind)["prev"]))[kind] == seen[1]


def test_after_the_last_page_that_there_are_more_is_told(
    broker: Backend, superuser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STORELESS, "PAGE", 1)
    monkeypatch.setattr(STORELESS, "LAST", 2)
    for name in ("a", "b", "c"):
        end(broker, name, SettleAction.BURY)
    assert "There are more" not in text_of(superuser.get(INDEX))
    for number in ("2", "9999", "²", "-1", "9" * 5_000):
        assert superuser.get(INDEX, {"buried": number}).status_code == 200
    for number in ("2", "9999"):
        last = superuser.get(INDEX, {"buried": number})
        assert "There are more, which are not shown here." in text_of(last)
        assert (listed(last)["buried"], pages_beside(last, "buried")["next"]) == (["b"], "")


FILL: dict[str, Callable[[Backend, str], None]] = {
    "buried": lambda broker, name: end(broker, name, SettleAction.BURY),
    "retried": lambda broker, name: end(broker, name, SettleAction.RETRY, delay_ms=60_000),
    "parked": lambda broker, name: send(broker, name, key="other"),
}


def pages_beside(response: Any, kind: str) -> dict[str, str]:
    """The addresses of the pages before and after."""
    (section,) = re.findall(rf'<section id="delayq-{kind}".*?</section>', page(response), re.DOTALL)
    return {
        rel: next(iter(re.findall(rf'<a href="([^"]*)" rel="{rel}">', section)), "").replace("&amp;", "&")
        for rel in ("prev", "next")
    }


def test_the_tiles_count_without_a_store(broker: Backend, superuser: Client) -> None:
    end(broker, "buried", SettleAction.BURY)
    send(broker, "a", "b")
    numbers = re.findall(r"<dd>(.*?)</dd>", page(superuser.get(INDEX)))
    assert numbers == ["2", "2", "0", "–", "1"]


@pytest.mark.parametrize(
    ("move", "id", "after", "said"),
    [
        ("rescue", "buried", State.READY, "Rescued: 1 message."),
        ("purge_failed", "buried", None, "Purged: 1 message."),
        ("purge", "waiting", None, "Purged: 1 message."),
    ],
)
def test_messages_are_moved_after_a_question(
    broker: Backend, superuser: Client, move: str, id: str, after: State | None, said: str
) -> None:
    end(broker, "buried", SettleAction.BURY)
    send(broker, "waiting")
    before = states(broker, "buried", "waiting")
    asked = superuser.post(MOVE, {"move": move, "id": [id]})
    assert "1 message." in text_of(asked)
    assert states(broker, "buried", "waiting") == before
    done = superuser.post(MOVE, {"move": move, "id": [id], "sure": "yes"}, follow=True)
    assert said in text_of(done)
    assert states(broker, id) == [after]
    (entry,) = LogEntry.objects.all()
    assert (entry.object_repr, entry.change_message.splitlines()[0]) == (id, f"{move}: 1 of 1 messages")


def test_what_could_not_be_moved_is_told(broker: Backend, superuser: Client) -> None:
    end(broker, "buried", SettleAction.BURY)
    done = superuser.post(MOVE, {"move": "rescue", "id": ["buried", "gone"], "sure": "yes"}, follow=True)
    assert "Rescued: 1 message." in text_of(done)
    assert "1 message was left: it runs, has moved on, or its id waits again. (gone)" in text_of(done)


@pytest.mark.parametrize("move", ["rescue", "purge_failed", "purge"])
def test_that_nothing_was_moved_is_not_told_as_done(broker: Backend, superuser: Client, move: str) -> None:
    done = superuser.post(MOVE, {"move": move, "id": ["a", "b"], "sure": "yes"}, follow=True)
    assert "2 messages were left: they run, have moved on, or their ids wait again. (a, b)" in text_of(done)
    assert '<li class="success">' not in page(done)
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("move", "permission"),
    [
        ("rescue", "rescue_message"),
        ("purge_failed", "delete_errormessage"),
        ("purge", "delete_readymessage"),
    ],
)
def test_each_move_takes_its_own_permission(
    broker: Backend, staff: Callable[..., Client], move: str, permission: str
) -> None:
    end(broker, "a", SettleAction.BURY)
    send(broker, "b")
    views = ("view_readymessage", "view_errormessage")
    assert (
        staff(permission, "view_finishmessage").post(MOVE, {"move": move, "id": ["a"], "sure": "y"}).status_code == 403
    )
    others = {"rescue_message", "delete_errormessage", "delete_readymessage"} - {permission}
    asked = {"move": move, "id": ["a", "b"], "sure": "yes"}
    assert staff(*views, *others).post(MOVE, asked).status_code == 403
    assert states(broker, "a", "b") == [State.FAILED, State.READY]
    client = staff(*views, permission, "view_payload", "cancel_message")
    assert f'value="{move}"' in page(client.get(INDEX))
    assert client.post(MOVE, asked).status_code == 302
    assert states(broker, "a", "b") != [State.FAILED, State.READY]


def test_who_may_not_see_messages_is_shown_none(broker: Backend, staff: Callable[..., Client]) -> None:
    end(broker, "a", SettleAction.BURY)
    send(broker, "b")
    assert listed(staff("view_readymessage").get(INDEX)) == {"parked": ["b"]}
    assert listed(staff("view_errormessage", "pause_queue").get(INDEX)) == {"buried": ["a"]}
    assert listed(staff("view_finishmessage", "pause_queue", "view_payload").get(INDEX)) == {}


def test_who_may_only_look_is_offered_no_move(broker: Backend, staff: Callable[..., Client]) -> None:
    end(broker, "a", SettleAction.BURY)
    assert 'name="move"' not in page(staff("view_readymessage", "view_errormessage").get(INDEX))


def test_no_get_moves_anything(broker: Backend, superuser: Client) -> None:
    end(broker, "a", SettleAction.BURY)
    assert superuser.get(MOVE, {"move": "rescue", "id": "a", "sure": "yes"}).status_code == 405
    assert superuser.post(MOVE, {"move": "x", "id": "a", "sure": "yes"}).status_code == 400
    assert "No message was chosen." in text_of(superuser.post(MOVE, {"move": "rescue"}, follow=True))
    assert states(broker, "a") == [State.FAILED]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 }}"])
def test_what_messages_say_is_text(broker: Backend, superuser: Client, text: str) -> None:
    end(broker, text, SettleAction.BURY, error=text, detail=text, failed=True)
    for response in (superuser.get(INDEX), superuser.post(MOVE, {"move": "rescue", "id": [text]})):
        assert text in text_of(response)
        assert not re.search(r"<script>|<img", page(response))


def test_a_broker_that_is_away_is_told(settings: Settings, superuser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.brokers.redis.client.client.BUDGET", 0.1)
    redis = "django_delayq.brokers.redis.RedisBroker"
    settings.DELAYQ = {"default": {"BROKER": redis, "LOCATION": FAR, "STORE": None}}
    moved = superuser.post(MOVE, {"move": "rescue", "id": ["a"], "sure": "yes"}, follow=True)
    for response in (superuser.get(INDEX), moved):
        assert "Away" in text_of(response)
        assert "127.0.0.1:1" in text_of(response)
    assert '<li class="error">' in page(moved)


def test_the_lists_lead_to_the_dashboard_where_there_is_no_store(broker: Backend, staff: Callable[..., Client]) -> None:
    shown = page(staff("view_errormessage").get(url("errormessage")))
    assert f'what the broker carries is on the <a href="{INDEX}">dashboard</a>' in shown
