"""What a refusal of Redis becomes: our error, with the fix."""

from collections.abc import Callable
from pathlib import Path

import pytest

from django_delayq.brokers.redis import RedisBroker
from django_delayq.conf import parse_alias
from django_delayq.core.errors import BrokerRefused
from tests.servers import Server


@pytest.mark.parametrize("login", ["", ":wrong@", "nobody:wrong@"])
def test_a_missing_or_wrong_password_is_told_with_its_fix(start_redis: Callable[..., Server], login: str) -> None:
    server = start_redis(requirepass="right")
    socket: Path = server.socket
    broker = RedisBroker(parse_alias("default", {"LOCATION": f"unix://{login}{socket}"}))
    with pytest.raises(BrokerRefused, match=r"[^.;]; check user and password in LOCATION\.$"):
        broker.open()
    broker.close()
