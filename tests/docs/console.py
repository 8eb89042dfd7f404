"""Blocks of shell commands: a line that begins with "$ " is a command, the lines after it what it writes.

A line "..." stands for any lines, as in a doctest. A worker or a web server runs on behind the page until a line "^C";
a block that begins without a command goes on with what the last of them writes.
"""

import doctest
import re
import shlex

from tests.docs import only_checked
from tests.docs.site import Process, Site

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
    if only_checked.knows(command):
        return only_checked.check(command)
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
