"""The translations that are shipped are whole, compiled, and name the same values as the English."""

import gettext
import re
from pathlib import Path

import pytest
from django.utils import translation

import django_delayq
from django_delayq.models import ErrorMessage

LOCALE = Path(django_delayq.__file__).parent / "locale"
_ENTRY = re.compile(r'^msgid "(.+)"\n(?:msgid_plural ".*"\n)?((?:msgstr.*\n?)+)', re.MULTILINE)
_TEXT = re.compile(r'^msgstr(?:\[\d\])? "(.*)"$', re.MULTILINE)
_VALUES = re.compile(r"%\(\w+\)[sdg]")


def entries(language: str) -> dict[str, list[str]]:
    """The texts of a catalogue, and what they are translated to."""
    text = (LOCALE / language / "LC_MESSAGES" / "django.po").read_text()
    return {msgid: _TEXT.findall(translated) for msgid, translated in _ENTRY.findall(text)}


def test_every_text_is_translated_with_the_same_values() -> None:
    chinese = entries("zh_Hans")
    assert chinese.keys() == entries("en").keys()
    for msgid, (translated,) in chinese.items():
        assert translated, msgid
        assert set(_VALUES.findall(translated)) == set(_VALUES.findall(msgid)), msgid


@pytest.mark.parametrize("language", ["en", "zh_Hans"])
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    with (LOCALE / language / "LC_MESSAGES" / "django.mo").open("rb") as compiled:
        catalogue = gettext.GNUTranslations(compiled)
    for msgid, translated in entries(language).items():
        found = {catalogue.gettext(msgid), catalogue.ngettext(msgid, msgid, 2)}  # the one or the other knows it
        assert (translated[0] or msgid) in found, msgid


def test_the_admin_speaks_chinese() -> None:
    with translation.override("zh-hans"):
        assert str(ErrorMessage._meta.verbose_name) == "失败消息"
