"""An audit line says who did what to what, and nobody forges one, or a part of one."""

import logging

import pytest

from django_delayq.support import audit
from django_delayq.support.audit import Operator, record

ANNA = Operator("anna", "192.0.2.7")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The lines of the logger."""
    caplog.set_level(logging.INFO, "django_delayq.audit")
    return caplog


def test_it_names_the_verb_who_and_what(lines: pytest.LogCaptureFixture) -> None:
    record(ANNA, "cancel", "default", ["order:42:close", "a b,c"], moved=2, by=None)
    assert lines.messages == ['cancel who=anna from=192.0.2.7 alias=default moved=2 ids=order:42:close,"a b,c"']


@pytest.mark.parametrize("name", ["a\ncancel who=root", 'a" who="root', "a who=root", "\u202etoor", "a\\"])
def test_no_name_is_taken_for_another_line_or_value(lines: pytest.LogCaptureFixture, name: str) -> None:
    record(Operator(name, name), "cancel", name, [name], reason=name)
    (line,) = lines.messages
    assert line.isprintable()
    bare = "".join(line.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    assert bare == "cancel who= from= alias= reason= ids="


def test_a_password_is_not_in_it(lines: pytest.LogCaptureFixture) -> None:
    record(ANNA, "pause", "default", reason="redis://u:hunter2@cache is away, password=hunter2")
    assert "hunter2" not in lines.text


def test_many_ids_take_several_lines(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "NAMED", 2)
    record(ANNA, "purge", "default", ["a", "b", "c"], moved=3)
    assert [line.rpartition(" ")[2] for line in lines.messages] == ["ids=a,b", "ids=c"]
