"""`delayq audit` proves that each message is in exactly one place, and fails when one is not."""

import json
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_delayq.brokers.base import Backend
from django_delayq.brokers.memory import MemoryBroker
from tests.commands.support import bury, claim, delayq, delayq_json, send


def test_what_adds_up_is_ok_and_summed_in_one_line(carrying: Backend) -> None:
    bury(carrying, "e")
    send(carrying, "r")
    claim(carrying)
    send(carrying, "p", "c", delay_ms=60_000)
    carrying.queue.cancel(["c"])
    assert delayq("audit").splitlines() == [
        "sent 4: pending 1, ready 0, running 1, failed 1, finished 0, cancelled 1, purged 0, dropped 0",
        "audit: ok",
    ]
    seen = delayq_json("audit")
    assert (seen["ok"], seen["differences"], seen["places"]["error"]) == (True, [], 1)


def test_what_does_not_add_up_is_named_and_fails(clocked_broker: MemoryBroker) -> None:
    send(clocked_broker, "a")
    clocked_broker._places.totals["sent"] += 1
    out = StringIO()
    with pytest.raises(CommandError, match="audit: 1 ") as raised:
        call_command("delayq", "audit", stdout=out)
    assert raised.value.returncode == 1
    assert "difference: " in out.getvalue()
    assert "audit: ok" not in out.getvalue()


def test_what_does_not_add_up_fails_with_json_too(clocked_broker: MemoryBroker) -> None:
    send(clocked_broker, "a")
    clocked_broker._places.totals["sent"] += 1
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("delayq", "audit", "--json", stdout=out)
    seen = json.loads(out.getvalue())
    assert not seen["ok"]
    assert len(seen["differences"]) == 1
