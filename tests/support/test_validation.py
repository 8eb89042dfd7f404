"""Names, counts and flags: accepted as plain values, refused with the value and the fix."""

from typing import Any

import pytest
from django.db.models import TextChoices
from django.utils.safestring import mark_safe

from django_delayq.support.validation import (
    are_names,
    check_count,
    check_flag,
    check_name,
    check_new_name,
    check_queue,
    did_you_mean,
    short_repr,
)


class Color(TextChoices):
    RED = "red"


@pytest.mark.parametrize("name", ["order:1:close", "a b", "ключ", "🚀", "\u00a0", "x" * 200])
def test_a_name_is_any_printable_text_of_up_to_200_characters(name: str) -> None:
    assert check_name(name, "id") == name


@pytest.mark.parametrize("name", [Color.RED, mark_safe("red")])
def test_a_kind_of_str_becomes_plain(name: str) -> None:
    assert type(check_name(name, "id")) is str
    assert check_name(name, "id") == "red"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("", "is empty; give 1 to 200 characters"),
        ("x" * 201, "has 201 characters; give at most 200"),
        ("a\x1eb", r"contains '\\x1e'; leave out control characters"),
        ("a\n", r"contains '\\n'; leave out"),
        ("a\x85", r"contains '\\x85'; leave out"),
        ("a\u2028", r"contains '\\u2028'; leave out"),
        ("a\ud800", r"contains '\\ud800'; leave out"),
    ],
)
def test_other_text_is_refused(name: str, fix: str) -> None:
    with pytest.raises(ValueError, match=rf"^id=.*{fix}"):
        check_name(name, "id")


@pytest.mark.parametrize("character", ["\u202e", "\u200d", "\u00ad", "\ufeff", "\u2066"])
def test_a_new_name_has_nothing_that_hides_or_reorders_text_and_an_old_one_is_found(character: str) -> None:
    assert check_name(f"a{character}b", "id") == f"a{character}b"
    with pytest.raises(ValueError, match=rf"^id=.* contains U\+{ord(character):04X}, which hides or reorders text"):
        check_new_name(f"a{character}b", "id")


@pytest.mark.parametrize("name", [5, None, b"a", ["a"]])
def test_what_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"^id=.* is \w+; give one str\."):
        check_name(name, "id")


def test_a_queue_has_no_colon() -> None:
    assert check_queue("mail") == "mail"
    with pytest.raises(ValueError, match=r"^queue='a:b' contains a colon"):
        check_queue("a:b")


def test_counts_and_flags_are_exact_types() -> None:
    assert check_count(3, "n") == 3
    assert check_flag(True, "f") is True
    for wrong in (True, 1.0, "1"):
        with pytest.raises(TypeError, match=r"^n="):
            check_count(wrong, "n")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^n=0 is too small; give 1 or more"):
        check_count(0, "n")
    with pytest.raises(TypeError, match=r"^f='yes' is str; give True or False"):
        check_flag("yes", "f")  # type: ignore[arg-type]


def test_the_nearest_name_is_offered_else_all() -> None:
    known = ["order.close", "order.remind"]
    assert did_you_mean("order.clsoe", known) == "did you mean 'order.close'?"
    assert did_you_mean("zzz", known) == "there is: order.close, order.remind."
    assert did_you_mean("zzz", []) == "there is none."


def test_a_value_is_shown_short_even_when_its_repr_raises() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(short_repr("x" * 10_000)) < 100
    assert "Broken" in short_repr(Broken())


def test_a_number_of_thousands_of_digits_is_shown_as_such() -> None:
    for value in (10**5_000, {"n": [10**5_000]}):
        assert "digits" in short_repr(value)
        assert len(short_repr(value)) < 100


@pytest.mark.parametrize("names", [["a", "é:%/"], [], ["x" * 200], ["x.delayq", "delayq"]])
def test_names_at_once_are_those_that_are_taken_as_they_are(names: list[str]) -> None:
    assert are_names(names)
    assert [check_name(name, "id") for name in names] == names


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\ud800", "\u2028", "delayq.x", None, 1])
def test_one_that_is_no_name_is_found_among_many(name: object) -> None:
    assert not are_names(["a", name, "b"])
