"""`delayq shards`."""

from collections.abc import Callable

import pytest
from django.core.management.base import CommandError
from pytest_django import Settings

from django_delayq.brokers import get_broker
from django_delayq.brokers.base import Header, Put
from django_delayq.brokers.redis import RedisBroker
from tests.commands.support import delayq, delayq_json
from tests.redis_users import location_of
from tests.servers import Server

Deploy = Callable[..., None]


@pytest.fixture
def deploy(settings: Settings, redis_server: Server) -> Deploy:
    """Settings of all processes."""

    def deployed(**options: int) -> None:
        alias = {"LOCATION": redis_server.url, "STORE": None, "OPTIONS": options | {"unknown_keys": "allow"}}
        settings.DELAYQ = {"default": alias}

    return deployed


def test_a_change_is_switched_watched_and_over(deploy: Deploy) -> None:
    deploy(shards=4)
    get_broker().put([Put(f"{n}", Header("q", "k"), b"1", 60_000) for n in range(10)])
    assert delayq("shards") == "4 shards, and no change of that\n"

    deploy(shards=3, old_shards=4)
    with pytest.raises(CommandError, match="run this with --switch"):
        delayq("shards")
    with pytest.raises(CommandError, match="what is left by 4 has not ended"):
        delayq("shards", "--switch")
    with pytest.raises(CommandError, match="has not ended"):
        delayq("shards")

    get_broker().cancel([f"{n}" for n in range(10)])
    assert delayq_json("shards") == {
        "alias": "default",
        "shards": 3,
        "old_shards": 4,
        "switched": True,
        "drained": True,
        "left": {"messages": 0, "buried": 0, "alarms": 0},
    }
    deploy(shards=3)
    assert delayq("shards") == "3 shards, and no change of that\n"


def test_who_may_only_look_is_told_that_a_worker_must_end_the_change(
    deploy: Deploy, settings: Settings, redis_server: Server
) -> None:
    deploy(shards=3, old_shards=4)
    broker, alias = get_broker(), settings.DELAYQ["default"]
    assert isinstance(broker, RedisBroker)
    broker.switch_shards()
    settings.DELAYQ = {"default": alias | {"LOCATION": location_of(redis_server, "dashboard")}}
    with pytest.raises(CommandError, match="run it as one who may work, such as delayq-worker"):
        delayq("shards")
    settings.DELAYQ = {"default": alias | {"LOCATION": location_of(redis_server, "worker")}}
    assert "drained: take old_shards out" in delayq("shards")


def test_a_switch_without_an_old_number_is_refused(deploy: Deploy) -> None:
    deploy(shards=3)
    with pytest.raises(CommandError, match="old_shards") as refused:
        delayq("shards", "--switch")
    assert refused.value.returncode == 2


def test_who_is_not_on_redis_has_no_shards(settings: Settings) -> None:
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.brokers.memory.MemoryBroker", "STORE": None}}
    with pytest.raises(CommandError, match="has no shards"):
        delayq("shards")
