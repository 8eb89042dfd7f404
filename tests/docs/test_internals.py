"""The pages about the inside say what is inside."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from django_delayq.brokers.redis.shards import Keys
from django_delayq.core.message import State
from django_delayq.core.transitions import MOVES
from tests.docs.site import ROOT
from tests.docs.tables import codes, rows, tables

LUA = ROOT / "django_delayq/brokers/redis/lua"
SCRIPTS = {path.stem: path for path in LUA.glob("*.lua")}
STRUCTURES = (
    "msg",
    "state",
    "running",
    "suspect",
    "error",
    "again",
    "keys",
    "timer",
    "count",
    "epoch",
    "cursor",
    "meta",
    "call",
    "job",
    "wait",
    "permits",
    "line",
    "turn",
)


def test_the_table_of_moves_is_that_of_the_code() -> None:
    (told,) = tables("internals/states.md", "The moves")
    assert {move: (set(codes(start)), set(codes(end))) for move, start, end in told} == {
        move: (set(start), set(end)) for move, (start, end) in MOVES.items()
    }


def test_every_state_has_a_row() -> None:
    (told, *_) = tables("internals/states.md")
    assert {state for first, *_ in told for state in codes(first)} == set(State) - {State.NONE}


def test_every_script_has_a_row_with_its_moves() -> None:
    (told, *_) = tables("internals/scripts.md")
    assert {codes(script)[0] for script, *_ in told} == set(SCRIPTS)
    assert {move for _, moves, *_ in told for move in moves.split(", ") if move} == set(MOVES)


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_a_script_has_the_keys_that_its_row_says(script: str) -> None:
    _, keys, _ = rows("internals/scripts.md")[script]
    assert set(codes(keys)) == _keys_of(SCRIPTS[script])


def test_every_structure_has_a_row() -> None:
    told = {name.split(":")[0] for name in rows("internals/structures.md") if name[0] != "`"}
    other = {"prefix", "shard", "most_bytes", "signer", "checks_signatures"}
    other |= {"tag", "sets", "meta", "channel", "waits", "calls"}
    in_code = {field.name for field in fields(Keys)} - other
    assert in_code | {"keys", "wait", "call", "job"} <= told


def _keys_of(path: Path) -> set[str]:
    """The structures that the comment at a script's head names as its keys."""
    text = path.read_text()
    found = re.search(r"^-- KEYS(.*\n(?:--   .*\n)*)", text, re.MULTILINE)
    if found is None:  # the head is that of a part which does the work
        (part,) = (part for part in text.splitlines()[0].split() if part in ("back", "waiting"))
        return _keys_of(LUA / "lib" / f"{part}.lua")
    elsewhere = re.search(r"as in (\w+)\.lua", found[1])
    if elsewhere:
        return _keys_of(SCRIPTS[elsewhere[1]])
    names = re.findall(r"\d+(?:\.\.)? (?:the )?(\w+)|(wait) set", found[1])
    return {name for pair in names for name in pair} & set(STRUCTURES)


@pytest.mark.parametrize("page", ["internals/faults.md", "internals/database.md"])
def test_each_fault_and_promise_is_shown_by_tests_that_there_are(page: str) -> None:
    (told,) = tables(page)
    for fault, *_, named in told:
        path = ""
        for test in codes(named):
            path, _, name = test.rpartition("::") if "::" in test else (path, "", test)
            if name.startswith("test_"):
                assert re.search(rf"^ *def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), (
                    f"{fault}: there is no {path}::{name}"
                )
        assert path, f"{fault} names no test"
