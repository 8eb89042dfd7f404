"""The reference says what the code has: no more, no less, and the same defaults."""

import argparse
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from django.core.management import load_command_class
from django.dispatch import Signal

import django_delayq
from django_delayq import signals
from django_delayq.conf import Alias, Options, Store, parse_alias
from django_delayq.core.retry import Exponential
from tests.docs.site import ROOT
from tests.docs.tables import codes, rows, tables

DJANGOS = {"-h", "--help", "--version", "-v", "--verbosity", "--settings", "--pythonpath", "--traceback"} | {
    "--no-color", "--force-color", "--skip-checks"
}  # fmt: skip
NO_DEFAULT = ("", "all")


def test_every_option_has_a_row_with_its_default() -> None:
    told = rows("reference/settings.md", "`OPTIONS`")
    assert set(told) == {field.name for field in fields(Options)}
    configured = {name: _value(default) for name, (default, _) in told.items()}
    assert parse_alias("default", {"OPTIONS": configured}).options == Options()


def test_every_setting_of_the_store_has_a_row_with_its_default() -> None:
    told = rows("reference/settings.md", "`STORE`")
    assert {name.lower() for name in told} == {field.name for field in fields(Store)}
    configured = {name: _value(default) for name, (default, _) in told.items()}
    assert parse_alias("default", {"STORE": configured}).store == Store()


def test_every_setting_of_an_alias_has_a_row_with_its_default() -> None:
    told = rows("reference/settings.md", "Of an alias")
    assert {name.lower() for name in told} == ({field.name for field in fields(Alias)} - {"name"}) | {"store"}
    configured = {name: _value(default) for name, (default, _) in told.items()}
    assert parse_alias("default", configured) == Alias("default")


@pytest.mark.parametrize("function", ["delay_execute", "send_delay_message", "schedule_delay_message"])
def test_every_argument_has_a_row_with_its_default(function: str) -> None:
    told = rows("reference/api.md", f"`{function}`")
    parameters = inspect.signature(getattr(django_delayq, function)).parameters
    assert list(told) == [name for name in parameters if name not in ("positional", "unknown", "options")]
    names = {"Exponential": Exponential}
    defaults = {name: _value(default, names) for name, (default, _) in told.items() if default}
    assert defaults == {name: p.default for name, p in parameters.items() if p.default is not p.empty and name in told}


def test_every_public_name_is_in_the_api() -> None:
    text = (ROOT / "docs/reference/api.md").read_text()
    assert [name for name in django_delayq.__all__ if not re.search(rf"`@?{name}\b", text)] == []


@pytest.mark.parametrize("name", ["Message", "MessageInfo", "Sent", "SentMany", "SendError", "ScheduleInfo"])
def test_every_public_attribute_is_in_the_api(name: str) -> None:
    text = (ROOT / "docs/reference/api.md").read_text()
    kind = getattr(django_delayq, name)
    attributes = {member for member in [*getattr(kind, "__annotations__", ()), *vars(kind)] if member[0] != "_"}
    assert [each for each in sorted(attributes) if not re.search(rf"`{each}\b", text)] == []


def test_every_option_of_run_delayq_has_a_row_with_its_default() -> None:
    parser = _parser("run_delayq")
    _compare(rows("reference/commands.md", "`run_delayq`"), parser)


def test_every_subcommand_has_a_section() -> None:
    headings = re.findall(r"^### `delayq (\S+?)[ `]", (ROOT / "docs/reference/commands.md").read_text(), re.MULTILINE)
    assert headings == list(_subparsers())


@pytest.mark.parametrize(
    "name",
    [
        *("status", "peek", "errors", "list", "explain", "audit", "check-data"),
        *(
            "cancel",
            "reschedule",
            "run-now",
            "rescue",
            "send-again",
            "undo",
            "purge",
            "prune",
            "forget",
            "pause",
            "resume",
        ),
        *("schedules", "pause-schedule", "backfill-schedule", "remove-schedule", "import-beat"),
    ],
)
def test_every_option_of_a_subcommand_has_a_row_with_its_default(name: str) -> None:
    parser = _subparsers()[name]
    positional = [action.metavar for action in parser._actions if not action.option_strings]
    heading = " ".join(["delayq", name, *map(str, positional)])
    if name in ("cancel", "reschedule", "run-now", "rescue", "send-again", "purge"):
        heading = f"delayq {name} [ID…]"
    elif name in ("pause", "resume", "check-data"):
        heading = f"delayq {name} [QUEUE]"
    elif name == "schedules":
        heading = "delayq schedules [NAME]"
    elif name in ("pause-schedule", "remove-schedule"):
        heading = f"delayq {name} NAME…"
    _compare(rows("reference/commands.md", f"`{heading}`"), parser, but={"--using"})


def test_every_exit_code_of_a_stopped_worker_is_told() -> None:
    assert {"0", "1", "2", "130, 143"} <= {line.split(" | ")[0].strip("| ") for line in _lines("reference/commands.md")}


def test_each_figure_of_the_readme_names_its_benchmark() -> None:
    named = [name for *_, cell in tables("../README.md")[0] for name in codes(cell)]
    assert len(named) > 3
    assert set(named) <= rows("reference/benchmarks.md").keys()


def test_every_signal_has_a_row() -> None:
    assert set(rows("reference/signals.md")) == {n for n, value in vars(signals).items() if isinstance(value, Signal)}


def test_every_check_has_a_row() -> None:
    source = "".join(path.read_text() for path in (ROOT / "django_delayq").rglob("*.py"))
    assert set(rows("reference/checks.md")) == set(re.findall(r"delayq\.[EWI]\d{3}", source))


def _compare(told: dict[str, list[str]], parser: argparse.ArgumentParser, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    actions = [a for a in parser._actions if a.option_strings and not DJANGOS & set(a.option_strings)]
    actions = [action for action in actions if not but & set(action.option_strings)]
    in_code = {option: action for action in actions for option in action.option_strings}
    by_option = {option.split()[0]: cells for option, cells in told.items() if option.startswith("-")}
    assert set(by_option) == set(in_code)
    for option, (default, _) in by_option.items():
        if default not in NO_DEFAULT and not default.startswith("`--"):
            action = in_code[option]
            assert _parse(action, codes(default)[0]) == action.default, option


def _parse(action: argparse.Action, text: str) -> Any:
    parse: Callable[[str], Any] = action.type if callable(action.type) else str
    return parse(text)


def _parser(name: str) -> argparse.ArgumentParser:
    return load_command_class("django_delayq", name).create_parser("manage.py", name)


def _subparsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in _parser("delayq")._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def _lines(page: str) -> list[str]:
    return (ROOT / "docs" / page).read_text().splitlines()


def _value(cell: str, names: dict[str, Any] | None = None) -> Any:
    """A default as the page writes it: Python, in code."""
    return eval(codes(cell)[0], names or {})  # noqa: S307 - our own page
