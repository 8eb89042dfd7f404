"""assert_sent and assert_not_sent: what waits, and what a failure says of it."""

from datetime import timedelta
from unittest.mock import ANY

import pytest
from django.test import TestCase, override_settings
from django.utils import timezone

from django_delayq import UnknownKey, cancel_delay_messages
from django_delayq.testing import DelayqMixin, run_due
from tests.testing.handlers import chain, note


class InATestCase(DelayqMixin, TestCase):
    def test_what_was_sent_is_found_by_key_data_and_delay(self) -> None:
        note.send("a", delay="30m", id="a")
        note.send("b", at=timezone.now() + timedelta(hours=1))
        self.assert_sent("testing.note")
        self.assert_sent("testing.note", data=ANY, delay=3600)
        assert self.assert_sent("testing.note", data="a", delay="30m").id == "a"
        self.assert_not_sent("testing.chain")
        self.assert_not_sent("testing.note", data="c")
        self.assert_not_sent("testing.note", data="a", delay="1h")

    def test_what_was_cancelled_or_has_run_is_not(self) -> None:
        note.send("a", id="a")
        note.send("b")
        cancel_delay_messages("a")
        run_due()
        self.assert_not_sent("testing.note")

    def test_a_failure_says_what_was_sent_instead(self) -> None:
        note.send("a", delay="1h", id="of a")
        chain.send(1, delay="90m", id="of 1")
        with pytest.raises(AssertionError) as failed:
            self.assert_sent("testing.note", data="a", delay="30m")
        assert str(failed.value).splitlines() == [
            "No message waits with key='testing.note', data='a', delay='30m'.",
            "These wait:",
            "  key='testing.note', data='a', delay='1h', id='of a'",
            "  key='testing.chain', data=1, delay='1h30m', id='of 1'",
        ]
        with pytest.raises(AssertionError, match=r"^A message waits with key='testing.chain'\.\n.*\n.*id='of 1'$"):
            self.assert_not_sent("testing.chain")

    def test_a_misspelt_key_is_refused_and_not_taken_for_one_that_was_not_sent(self) -> None:
        for check in (self.assert_sent, self.assert_not_sent):
            with pytest.raises(UnknownKey, match=r"did you mean 'testing\.note'\?"):
                check("testing.noet")

    def test_a_long_list_is_cut_and_an_empty_one_said(self) -> None:
        with pytest.raises(AssertionError, match=r"key='testing\.chain'\.\nNone waits\."):
            self.assert_sent("testing.chain")
        for number in range(25):
            note.send(str(number))
        with pytest.raises(AssertionError, match=r"\n  and 5 more$"):
            self.assert_sent("testing.chain")


@override_settings(DELAYQ={"default": {"STORE": None}})
class InATestCaseWithoutAStore(InATestCase):
    pass


@pytest.mark.django_db
def test_the_pytest_fixtures_do_the_same(assert_sent, assert_not_sent) -> None:  # type: ignore[no-untyped-def]
    note.send("a", delay="3d")
    assert_sent("testing.note", delay="3d")
    with pytest.raises(AssertionError):
        assert_not_sent("testing.note")
