"""System checks: each wrong setting and handler has an id, the reason and a hint."""

from datetime import UTC, date, datetime
from typing import Any, TypedDict

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.views.debug import SafeExceptionReporterFilter
from pytest_django import Settings

from django_delayq import Every, Message, Sequence, Step, Window, delay_execute
from django_delayq.brokers import get_backend
from django_delayq.core.errors import Unsupported
from django_delayq.store import DatabaseBackend
from tests import scrubs

pytestmark = pytest.mark.usefixtures("registry")

MEMORY = "django_delayq.brokers.memory.MemoryBroker"
RABBITMQ = "django_delayq.brokers.rabbitmq.RabbitMQBroker"
ALONE = "django_delayq.brokers.database.DatabaseBroker"


class Parcel(TypedDict):
    account_id: int


def found() -> list[CheckMessage]:
    return run_checks(tags=["delayq"])


def handle(message: Message[int]) -> None: ...
async def handle_async(message: Message[int]) -> None: ...
def sends_parcel(message: Message[Parcel]) -> None: ...
def handle_anything(message: Message) -> None: ...  # type: ignore[type-arg]
def unresolved(message: "Message[Hidden]") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_right_settings_and_handlers_pass() -> None:
    delay_execute("a")(handle)
    delay_execute("b", timeout="10s")(handle_async)
    assert found() == []


@pytest.mark.parametrize(
    ("delayq", "id", "reason", "hint"),
    [
        ([], "E001", "DELAYQ is list", "reference of settings"),
        ({"LOCATION": "redis://h"}, "E001", 'write DELAYQ = {"default": {"LOCATION": ...}}.', "reference of settings"),
        ({"default": {"STOER": None}}, "E001", "did you mean 'STORE'?", "reference of settings"),
        ({"default": {"BROKER": "shop.Broker"}}, "E002", "'shop.Broker' can't be imported", "dotted path"),
        ({"default": {"BROKER": "django.db.models.Model"}}, "E002", "is no broker class, such as", "dotted path"),
        ({"default": {"BROKER": "django.db.connection"}}, "E002", "is no broker class, such as", "dotted path"),
        ({"default": {"LOCATION": "http://h"}}, "E001", "DELAYQ[\"default\"]: LOCATION 'http://h'", "settings"),
        ({"default": {"LOCATION": "cache:nope"}}, "E001", "CACHES has no 'nope'", "settings"),
        ({"default": {"LOCATION": ""}}, "E001", '["LOCATION"] is empty', "settings"),
        ({"default": {"BROKER": MEMORY, "DATABASE": "ohter"}}, "E003", "'ohter' is not in DATABASES", "'other'?"),
    ],
)
def test_a_wrong_setting_is_found(settings: Settings, delayq: Any, id: str, reason: str, hint: str) -> None:
    settings.DELAYQ = delayq
    (message,) = found()
    assert message.id == f"delayq.{id}"
    assert reason in message.msg
    assert message.hint is not None
    assert hint in message.hint


@pytest.mark.parametrize(
    ("func", "options", "id", "reason"),
    [
        (handle, {"using": "defualt"}, "E004", "using='defualt', which is not in DELAYQ"),
        (unresolved, {}, "E005", "name 'Hidden' is not defined"),
        (handle, {"atomic": True}, "W001", "is atomic, but without a store"),
        (handle, {"max_concurrency": 1, "concurrency_key": "a:{id}"}, "E009", "names 'id', which is no field"),
        (sends_parcel, {"max_concurrency": 1, "concurrency_key": "a:{}"}, "E009", "names '', which is no field"),
        (
            handle,
            {"rate_limit": "1/s", "rate_key": "a:{id}"},
            "E009",
            "a rate_key that names 'id'",
        ),
        (handle, {"id_scope": "all"}, "E018", 'has id_scope="all", but without a store'),
        (handle, {"share_key": "shop:{}"}, "E025", "only a store can let shares take turns"),
    ],
)
def test_a_wrong_handler_is_found_and_named(func: Any, options: dict[str, Any], id: str, reason: str) -> None:
    handler = delay_execute("k", **options)(func)
    (message,) = found()
    assert message.id == f"delayq.{id}"
    assert reason in message.msg
    assert f"tests.test_checks.{func.__name__} (key 'k')" in message.msg
    assert message.obj is handler
    assert message.hint


def test_a_time_out_that_threads_can_not_enforce_is_told_before_a_deploy_only() -> None:
    handler = delay_execute("k", timeout="10s")(handle)
    delay_execute("default")(handle)
    delay_execute("async", timeout="10s")(handle_async)
    assert found() == []
    (message,) = run_checks(tags=["delayq"], include_deployment_checks=True)
    assert (message.id, message.obj) == ("delayq.I001", handler)
    assert "tests.test_checks.handle (key 'k')" in message.msg
    assert "only under `run_delayq --processes`" in message.msg


def test_a_hint_writes_the_name_of_an_alias_as_the_settings_do(settings: Settings) -> None:
    settings.DELAYQ = {"Orders": {"BROKER": MEMORY, "STORE": None}}
    delay_execute("k", using="billing")(handle)
    assert [message.hint for message in found()] == ["There is: Orders."]


def test_atomic_with_a_store_is_exactly_once_and_no_matter_for_a_warning(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}}}
    delay_execute("k", atomic=True)(handle)
    assert "delayq.W001" not in [message.id for message in found()]


def test_without_a_store_each_send_with_a_share_key_is_refused() -> None:
    handler = delay_execute("k", share_key="shop:{}")(handle)
    with pytest.raises(Unsupported, match="needs a store"):
        handler.send(7)


def test_a_share_key_needs_a_field_of_the_data(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}}}
    delay_execute("k", share_key="shop:{id}")(handle)
    assert ["a share_key that names 'id'" in message.msg for message in found() if message.id == "delayq.E009"] == [
        True
    ]


def test_ids_that_are_refused_once_they_have_ended_pass_with_a_store(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}}}
    delay_execute("k", id_scope="all")(handle)
    assert "delayq.E018" not in [message.id for message in found()]


@pytest.mark.parametrize(
    ("func", "template"), [(handle, "a:{}"), (sends_parcel, "a:{account_id}"), (handle_anything, "a:{whatever}")]
)
def test_a_concurrency_key_of_what_the_data_may_have_passes(func: Any, template: str) -> None:
    delay_execute("k", max_concurrency=1, concurrency_key=template)(func)
    assert found() == []


def test_rabbitmq_without_a_store_is_refused_by_name(settings: Settings) -> None:
    rabbitmq = {"BROKER": RABBITMQ, "LOCATION": "amqp://localhost"}
    settings.DELAYQ = {"default": rabbitmq | {"STORE": None}}
    (message,) = found()
    assert message.id == "delayq.E014"
    assert 'DELAYQ["default"]["STORE"] is None, and RabbitMQBroker keeps no messages' in message.msg
    with pytest.raises(ImproperlyConfigured, match=r'RabbitMQBroker keeps no messages.*Leave "STORE" out') as refused:
        get_backend()
    assert str(refused.value) == message.msg
    settings.DELAYQ = {"default": rabbitmq | {"STORE": {}}}
    assert found() == []
    assert isinstance(get_backend(), DatabaseBackend)


def test_the_database_alone_without_a_store_is_refused_by_name(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": ALONE, "STORE": None}}
    (message,) = found()
    assert message.id == "delayq.E014"
    assert "DatabaseBroker keeps no messages" in message.msg
    settings.DELAYQ = {"default": {"BROKER": ALONE}}
    assert found() == []
    assert isinstance(get_backend(), DatabaseBackend)


def test_the_database_alone_is_at_no_other_location(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": ALONE, "LOCATION": "redis://:secret@redis/0"}}
    (message,) = found()
    assert message.id == "delayq.E001"
    assert 'DELAYQ["default"]: LOCATION is given, and DatabaseBroker connects to no server' in message.msg
    assert "secret" not in message.msg


def test_the_database_alone_must_be_one_that_a_store_can_use(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    settings.DELAYQ = {"default": {"BROKER": ALONE}}
    assert ["is oracle; the store needs one of" in message.msg for message in found()] == [True]


def test_a_store_in_a_database_that_commits_nothing_by_itself_is_refused_by_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}, "DATABASE": "other"}}
    monkeypatch.setitem(connections.settings["other"], "AUTOCOMMIT", False)
    (message,) = found()
    assert message.id == "delayq.E011"
    with pytest.raises(ImproperlyConfigured, match=r'DATABASES\["other"\]\["AUTOCOMMIT"\] is False') as refused:
        get_backend()
    assert str(refused.value) == message.msg
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": None, "DATABASE": "other"}}
    assert found() == []


def test_a_store_in_a_database_that_is_not_there_is_refused_by_name(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": {}, "DATABASE": "ohter"}}
    assert [message.id for message in found()] == ["delayq.E003"]
    with pytest.raises(ImproperlyConfigured, match=r"'ohter' is not in DATABASES; .*'other'"):
        get_backend()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {}, True),
        ({}, {"LOCATION": "redis://me:secret@127.0.0.1:6379"}, True),
        ({}, {"LOCATION": "redis://127.0.0.1:6379/1"}, False),
        ({}, {"LOCATION": "redis://127.0.0.1:6380/0"}, False),
        ({}, {"OPTIONS": {"prefix": "mail"}}, False),
        ({}, {"STORE": None}, True),
        ({"STORE": None}, {}, True),
        ({}, {"STORE": None, "OPTIONS": {"prefix": "mail"}}, False),
        ({"STORE": None}, {"STORE": None}, False),
        ({"BROKER": MEMORY}, {"BROKER": MEMORY}, False),
        ({"LOCATION": "unix:///run/redis.sock"}, {"LOCATION": "unix:///run/redis.sock?db=0"}, True),
        ({"LOCATION": "unix:///run/redis.sock"}, {"LOCATION": "unix:///run/redis.sock?db=1"}, False),
        ({"LOCATION": "embedded:///run/a"}, {"LOCATION": "embedded:///run/b/../a"}, True),
        ({"LOCATION": "redis+cluster://a,b"}, {"LOCATION": {"cluster": ["b:6379", "c:6379"]}}, True),
        ({"LOCATION": "redis+cluster://a,b"}, {"LOCATION": "redis+cluster://a:7000"}, False),
        ({"LOCATION": "redis+sentinel://a,b/m"}, {"LOCATION": {"sentinels": ["b:26379"], "name": "m"}}, True),
        ({"LOCATION": "redis+sentinel://a,b/m"}, {"LOCATION": "redis+sentinel://a,b/n"}, False),
        ({"BROKER": RABBITMQ, "LOCATION": "amqp://h"}, {"BROKER": RABBITMQ, "LOCATION": "amqp://u:p@h:5672/"}, True),
        ({"BROKER": RABBITMQ, "LOCATION": "amqp://h"}, {"BROKER": RABBITMQ, "LOCATION": "amqp://h/mail"}, False),
    ],
)
def test_two_aliases_with_one_place_and_prefix_of_which_one_has_a_store_are_refused_by_name(
    settings: Settings, one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    settings.DELAYQ = {"default": one, "mail": other}
    messages = found()
    assert [message.id for message in messages] == ["delayq.E013"] * same
    for message in messages:
        assert 'DELAYQ["default"] and DELAYQ["mail"]' in message.msg
        assert "secret" not in message.msg
        assert message.hint is not None
        assert 'DELAYQ["mail"]["OPTIONS"]["prefix"] = "delayq-mail"' in message.hint


def test_every_alias_is_checked(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY}, "a": {"OPTIONS": {"lease": 0}}, "b": {"DATABASE": "none"}}
    assert [message.id for message in found()] == ["delayq.E001", "delayq.E003"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("tests.admin.masks.without_card", ""),
        ("tests.admin.masks.no_such", 'does not define a "no_such"'),
        ("no_such.module.mask", "No module named 'no_such'"),
        ("tests.admin.masks.__name__", "is not a callable object"),
        ("tests.test_checks.handle", "too many positional arguments"),
    ],
)
def test_a_hook_that_would_hide_everything_is_found_before_anybody_looks(
    settings: Settings, path: str, why: str
) -> None:
    for option in ("mask", "rows_for"):
        settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": None, "OPTIONS": {option: path}}}
        messages = [message for message in found() if message.id == "delayq.E007"]
        assert bool(messages) == bool(why)
        for message in messages:
            assert f'["{option}"]={path!r}' in message.msg
            assert why in message.msg


@pytest.mark.parametrize(
    ("scrub", "why"),
    [
        ("tests.scrubs.without_cards", ""),
        (scrubs.without_cards, ""),
        ("tests.scrubs.missing", 'does not define a "missing"'),
        ("tests.admin.masks.without_card", "missing a required argument"),
    ],
)
def test_a_scrub_that_would_leave_every_error_out_is_found(settings: Settings, scrub: object, why: str) -> None:
    settings.DELAYQ = {"default": {"BROKER": MEMORY, "STORE": None, "OPTIONS": {"scrub": scrub}}}
    messages = [message for message in found() if message.id == "delayq.E015"]
    assert bool(messages) == bool(why)
    assert all(why in message.msg for message in messages)


@pytest.mark.parametrize(
    ("location", "ids"),
    [
        ("redis://127.0.0.1:6379/0", []),
        ("redis://user@[::1]/0", []),
        ({"host": "localhost", "password": "s3cr3t"}, []),
        ({"socket": "/run/redis.sock", "password": "s3cr3t"}, []),
        ({"host": "cache-1", "password": "s3cr3t", "tls": True}, []),
        ({"cluster": ["a", "b"], "tls": {"cert_reqs": "required"}}, []),
        ("redis+sentinel://localhost,127.0.0.1/shop/0", []),
        ("rediss://localhost/0?ssl_cert_reqs=none", []),
        ("redis://:s3cr3t@127.0.0.1/0", ["W007"]),
        ("unix:///run/redis.sock?password=s3cr3t", ["W007"]),
        ("rediss+sentinel://a/shop/0?sentinel_password=s3cr3t", ["W007"]),
        ("rediss+cluster://u:s3cr3t@a,b", ["W007"]),
        ("redis://cache-1/0", ["W008"]),
        ("redis+sentinel://localhost,a/shop/0", ["W008"]),
        ({"cluster": ["127.0.0.1:7000", "10.0.0.1:7000"]}, ["W008"]),
        ("cache:default", ["W008"]),
        ("cache:in_url", ["W007"]),
        ({"cache": "in_url"}, ["W007"]),
        ("cache:in_options", []),
        ("rediss://cache-1/0?ssl_cert_reqs=none", ["W009"]),
        ({"host": "cache-1", "tls": {"check_hostname": False}}, ["W009"]),
        ("embedded:///srv/a@b", ["E017"]),
        ({"embedded": "/srv/queue"}, ["E017"]),
        ("http://:s3cr3t@h", []),  # E001 reports it
    ],
)
def test_what_is_unsafe_in_production_is_found_by_deploy_and_nothing_else_is(
    settings: Settings, location: Any, ids: list[str]
) -> None:
    backend = {"BACKEND": "django.core.cache.backends.redis.RedisCache"}
    settings.CACHES = {
        "default": {**backend, "LOCATION": "redis://c:1"},
        "in_url": {**backend, "LOCATION": ["redis://:s3cr3t@localhost", "redis://replica"]},
        "in_options": {**backend, "LOCATION": "redis://localhost", "OPTIONS": {"password": "s3cr3t"}},
    }
    settings.DELAYQ = {"default": {"LOCATION": location}}
    assert_risks(ids)


@pytest.mark.parametrize(
    ("location", "ids"),
    [
        ("amqp://delayq@localhost", []),
        ({"host": "mq", "username": "delayq", "password": "s3cr3t", "tls": True}, []),
        ("amqps://delayq:s3cr3t@mq", ["W007"]),
        ("amqp://delayq@mq", ["W008"]),
        ("amqp://127.0.0.1", ["W010"]),
        ({"host": "mq", "username": "guest", "password": "s3cr3t"}, ["W008", "W010"]),
    ],
)
def test_what_is_unsafe_with_rabbitmq_is_found_too(settings: Settings, location: Any, ids: list[str]) -> None:
    settings.DELAYQ = {"default": {"BROKER": RABBITMQ, "LOCATION": location}}
    assert_risks(ids)


def assert_risks(ids: list[str]) -> None:
    """Assert that these are found with `--deploy`, and without it none."""
    deployed = run_checks(tags=["security"], include_deployment_checks=True)
    risks = [message for message in deployed if str(message.id).startswith("delayq.")]
    assert [str(message.id).removeprefix("delayq.") for message in risks] == ids
    for message in risks:
        assert 'DELAYQ["default"]["LOCATION"] ' in message.msg
        assert "s3cr3t" not in f"{message.msg} {message.hint}"
        assert message.hint
    assert not [message for message in found() if str(message.id).startswith("delayq.W")]


def test_django_hides_the_passwords_of_a_dict_in_its_error_mails(settings: Settings) -> None:
    one = {"host": "h", "password": "s3cr3t", "tls": {"password": "s3cr3t"}}
    other = {"sentinels": ["h"], "name": "n", "password": "s3cr3t", "sentinel_password": "s3cr3t"}
    settings.DELAYQ = {"default": {"LOCATION": one}, "other": {"LOCATION": other}}
    assert "s3cr3t" not in str(SafeExceptionReporterFilter().get_safe_settings()["DELAYQ"])


def test_a_calendar_that_a_recurring_handler_lacks_is_found(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"STORE": {}, "CALENDARS": {"shop": ["2030-12-25"]}}}
    for name in ("shop", "shpo"):
        every = Every(days=1, time="09:00", zone="Europe/Rome", calendar=name)
        delay_execute(name, every=every)(handle_nothing)
    (error,) = [message for message in found() if message.id == "delayq.E024"]
    assert "calendar='shpo' is not in CALENDARS" in error.msg
    assert "'shop'" in error.msg


def test_a_key_that_no_occurrence_has_room_for_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"key='k+\.\.\.k+' has 190 characters; give a schedule at most 146"):
        delay_execute("k" * 190, every=Every(hours=1))(handle_nothing)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, "until=2020-01-01 00:00:00+00:00 is past"),
        (
            {"start": datetime(2090, 1, 2, tzinfo=UTC), "until": datetime(2090, 1, 2, 1, tzinfo=UTC)},
            "the first occurrence",
        ),
        ({"window": Window("mon", "09:00", "10:00", zone="UTC", calendar="all")}, "give one that opens"),
        ({"start": datetime(2090, 1, 2, tzinfo=UTC)}, None),
    ],
)
def test_a_recurring_handler_that_never_runs_from_now_on_is_found(
    settings: Settings, options: dict[str, Any], why: str | None
) -> None:
    settings.DELAYQ = {"default": {"STORE": {}, "CALENDARS": {"all": "tests.test_checks.is_any_day"}}}
    delay_execute("k", every=Every(days=1, time="09:00", zone="UTC"), **options)(handle_nothing)
    warnings = [message for message in found() if message.id == "delayq.W015"]
    assert len(warnings) == (why is not None)
    assert all(str(why) in warning.msg for warning in warnings)


def is_any_day(day: date) -> bool:
    return True


def handle_nothing(message: Message[None]) -> None: ...


def test_a_sequence_without_a_store_or_with_an_unknown_key_is_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_delayq.api.sequences.by_alias", {})
    delay_execute("order.remind")(handle)
    settings.DELAYQ = {
        "default": {"STORE": {}},
        "other": {"BROKER": MEMORY, "STORE": None, "OPTIONS": {"unknown_keys": "allow"}},
    }
    Sequence("fine", [Step("order.remind")])
    Sequence("wrong", [Step("order.remind"), Step("order.remnid")])
    Sequence("storeless", [Step("a")], using="other")
    checked = [message for message in found() if message.id in ("delayq.E022", "delayq.E023")]
    assert [(message.id, str(message.obj)) for message in checked] == [
        ("delayq.E023", "<Sequence 'wrong'>"),
        ("delayq.E022", "<Sequence 'storeless'>"),
    ]
    assert "'order.remnid'" in checked[0].msg
    assert checked[0].hint == "Did you mean 'order.remind'?"
