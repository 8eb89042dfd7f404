"""Commands of a page that are not run by its test, and why; what can be checked without running them is."""

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence

from packaging.requirements import Requirement

from benchmarks.__main__ import BY_NAME, NAMES
from tests.docs.metadata import PROJECT
from tests.docs.references import missing
from tests.docs.site import ROOT


def knows(command: str) -> bool:
    """Return whether a command is one of these."""
    return _checker(command) is not None


def check(command: str) -> str | None:
    """Return what is wrong with the command."""
    checker = _checker(command)
    words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    return None if checker is None else checker(words)


def _install(words: Sequence[str]) -> str | None:
    """Needs a registry, and tests/test_package.py installs the wheel: here its name and extras count."""
    requirement = Requirement(words[-1])
    if requirement.name != PROJECT["name"]:
        return f"{words} does not install {PROJECT['name']}"
    missing = requirement.extras - set(PROJECT["optional-dependencies"])
    return f"{words} names extras that do not exist: {missing}" if missing else None


def _target(words: Sequence[str]) -> str | None:
    """Takes minutes, and is run by .ci/run: here the target must exist."""
    done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    return done.stderr if done.returncode else None


def _benchmark(words: Sequence[str]) -> str | None:
    """Takes minutes of a machine that has nothing else to do: here the names must exist."""
    unknown = set(words[words.index("benchmarks") + 1 :]) - set(NAMES + BY_NAME)
    return f"there is no benchmark {unknown}" if unknown else None


def _tests(words: Sequence[str]) -> str | None:
    """Tests of this repository are run by the suite itself: here the files must exist."""
    paths = [word for word in words if word.startswith("tests/")]
    return next(filter(None, map(missing, paths)), None) if paths else f"{words} names no tests"


_CHECKERS: dict[str, Callable[[Sequence[str]], str | None]] = {
    r"(python -m )?pip install ": _install,
    r"([A-Z_]+=\S+ )?make ": _target,
    r"\S*python -m benchmarks\b": _benchmark,
    r"\.venv/bin/python -m pytest\b": _tests,
}


def _checker(command: str) -> Callable[[Sequence[str]], str | None] | None:
    return next((checker for start, checker in _CHECKERS.items() if re.match(start, command)), None)
