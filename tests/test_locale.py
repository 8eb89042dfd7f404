"""The translations that are shipped are whole, compiled, and name the same values as the English."""

import gettext
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import translation
from pytest_django import Settings

import django_delayq
from django_delayq import send_delay_message
from django_delayq.models import ErrorMessage
from django_delayq.monitor import explain
from tests import servers

PACKAGE = Path(django_delayq.__file__).parent
LANGUAGES = ["en", "zh_Hans"]
_ENTRY = re.compile(r'^(?:msgctxt "(.+)"\n)?msgid "(.+)"\n(?:msgid_plural ".*"\n)?((?:msgstr.*\n?)+)', re.MULTILINE)
_TEXT = re.compile(r'^msgstr(?:\[\d\])? "(.*)"$', re.MULTILINE)
_VALUES = re.compile(r"%\(\w+\)[sdgr]")


def catalogue(language: str, package: Path = PACKAGE) -> Path:
    """Return what the translators write."""
    return package / "locale" / language / "LC_MESSAGES" / "django.po"


def entries(language: str, package: Path = PACKAGE) -> dict[str, list[str]]:
    """The texts of a catalogue, as gettext looks for them, and what they are translated to."""
    text = catalogue(language, package).read_text().replace('\\"', '"')
    return {
        "\x04".join(filter(None, (context, msgid))): _TEXT.findall(translated)
        for context, msgid, translated in _ENTRY.findall(text)
    }


def test_every_text_is_translated_with_the_same_values() -> None:
    chinese = entries("zh_Hans")
    assert chinese.keys() == entries("en").keys()
    assert "fuzzy" not in catalogue("zh_Hans").read_text()
    for msgid, (translated,) in chinese.items():
        assert translated, msgid
        assert set(_VALUES.findall(translated)) == set(_VALUES.findall(msgid)), msgid


def test_the_catalogues_have_the_texts_of_the_code_and_no_others(tmp_path: Path) -> None:
    if shutil.which("xgettext") is None:
        servers.missing("xgettext (the package gettext)")
    package = tmp_path / "django_delayq"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    options = [option for language in LANGUAGES for option in ("--locale", language)]
    command = ["-m", "django", "makemessages", *options, "--no-wrap", "--no-location", "--no-obsolete"]
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, *command], cwd=package, env=env, check=True, capture_output=True)
    for language in LANGUAGES:
        assert entries(language, package).keys() == entries(language).keys()


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    with catalogue(language).with_suffix(".mo").open("rb") as compiled:
        found = gettext.GNUTranslations(compiled)
    for msgid, translated in entries(language).items():
        known = {found.gettext(msgid), found.ngettext(msgid, msgid, 2)}  # the one or the other knows it
        assert (translated[0] or msgid) in known, msgid


def test_the_admin_speaks_chinese() -> None:
    with translation.override("zh-hans"):
        assert str(ErrorMessage._meta.verbose_name) == "失败消息"


def test_what_happens_next_is_told_in_the_language_of_the_page_but_by_commands_in_english(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.DELAYQ = {"default": {**settings.DELAYQ["default"], "OPTIONS": {"unknown_keys": "allow"}}}
    send_delay_message("k", id="a", delay="1h")
    with translation.override("zh-hans"):
        seen = explain("a")
        call_command("delayq", "explain", "a")
    assert seen
    assert seen.happens_next.startswith("到期后它会被搁置")
    assert "When it is due it stays parked" in capsys.readouterr().out
