"""Blocks of shell commands: a line that begins with "$ " is a command, the lines after it what it writes.

A line "..." stands for any lines, as in a doctest. A worker or a web server runs on behind the page until a line "^C";
a block that begins without a command goes on with what the last of them writes.
"""

import doctest
import re
import shlex
import subprocess

from packaging.requirements import Requirement

from tests.docs.metadata import PROJECT
from tests.docs.site import ROOT, Process, Site

_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_TELLS_FAILURE = re.compile(r"^(Command|SystemCheck)Error: ", re.MULTILINE)
_matches = doctest.OutputChecker().check_output


def run(site: Site, block: str, line: int) -> str | None:
    """Run the commands of a block in turn. Gives what one did otherwise than the page says."""
    before, *parts = ("\n" + block).split("\n$ ")
    wrong = _go_on(site.last, before.lstrip()) if before.strip() else None
    for part in parts:
        command, _, wanted = part.partition("\n")
        wrong = wrong or _run_one(site, command, wanted)
    return wrong


def _run_one(site: Site, command: str, wanted: str) -> str | None:
    if command.startswith(("pip install", "python -m pip install")):
        return _check_install(command)
    if command.startswith("make "):
        return _check_target(command)
    if _goes_on(command):
        return _go_on(site.start(command), wanted)
    code, got = site.run(command)
    if code and not _TELLS_FAILURE.search(wanted):
        return f"{command} ended with {code}:\n{got}"
    return None if not wanted.strip() else _compare(command, wanted, got)


def _compare(command: str, wanted: str, got: str) -> str | None:
    return None if _matches(wanted, got, _OPTIONS) else f"{command} wrote\n{got}\ninstead of\n{wanted}"


def _goes_on(command: str) -> bool:
    words = shlex.split(command)
    return "runserver" in words or ("run_delayq" in words and not {"--drain", "--help"} & set(words))


def _go_on(process: Process, wanted: str) -> str | None:
    wanted, stopped, rest = wanted.partition("^C\n")
    return _await_lines(process, wanted) or (_stop(process, rest) if stopped else None)


def _await_lines(process: Process, wanted: str) -> str | None:
    got = ""
    while not _matches(wanted, got, _OPTIONS):
        line = process.line()
        if line is None:
            return f"ended after\n{got}\ninstead of\n{wanted}"
        got += line
    return None


def _stop(process: Process, wanted: str) -> str | None:
    code = process.interrupt()
    got = "".join(iter(process.line, None))
    if code:
        return f"Ctrl-C ended it with {code}:\n{got}"
    return _compare("Ctrl-C", wanted, got) if wanted.strip() else None


def _check_install(command: str) -> str | None:
    """Installing needs a registry, and tests/test_package.py installs the wheel; here its name and extras count."""
    requirement = Requirement(shlex.split(command)[-1])
    if requirement.name != PROJECT["name"]:
        return f"{command} does not install {PROJECT['name']}"
    missing = requirement.extras - set(PROJECT["optional-dependencies"])
    return f"{command} names extras that do not exist: {missing}" if missing else None


def _check_target(command: str) -> str | None:
    """What a target of the Makefile does is tested where it is defined; here it must exist."""
    done = subprocess.run(["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True)
    return done.stderr if done.returncode else None
