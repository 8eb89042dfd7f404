"""Inside Django's TestCase, whose transaction never commits."""

import pytest
from django.db import transaction
from django.test import TestCase

from django_delayq import Handler, SendError, send_delay_messages
from django_delayq.api.on_commit import waiting_sends
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.conf import get_alias
from tests.api.support import waiting_ids


class InTestCase(TestCase):
    close_order: Handler[int, None]
    broker: MemoryBroker

    @pytest.fixture(autouse=True)
    def _fixtures(self, close_order: Handler[int, None], broker: MemoryBroker) -> None:
        self.close_order, self.broker = close_order, broker

    def waiting(self) -> list[str]:
        return [send.message.id for send in waiting_sends(get_alias())]

    def test_what_waits_for_the_commit_can_be_seen(self) -> None:
        self.close_order.send(1, id="a")
        self.close_order.send(2, id="b")
        assert (self.waiting(), waiting_ids(self.broker)) == (["a", "b"], [])

    def test_captured_callbacks_send_just_what_they_captured(self) -> None:
        self.close_order.send(1, id="before")
        with self.captureOnCommitCallbacks(execute=True):
            self.close_order.send(2, id="a")
            self.close_order.send(3, id="b")
        assert waiting_ids(self.broker) == ["a", "b"]
        with self.captureOnCommitCallbacks(execute=True):
            self.close_order.send(4, id="c")
        assert waiting_ids(self.broker) == ["a", "b", "c"]
        assert self.waiting() == ["before"]

    def test_a_bulk_send_is_not_in_a_transaction_of_the_code_under_test(self) -> None:
        assert send_delay_messages([self.close_order.prepare(1)]).created == 1

    def test_a_bulk_send_in_a_transaction_of_the_code_under_test_raises(self) -> None:
        with transaction.atomic(), pytest.raises(SendError, match="A bulk send can't wait"):
            send_delay_messages([self.close_order.prepare(1)])
