"""Install contenders from PyPI and npm, each into an environment of its own below `var/compare`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REQUIREMENTS = HERE / "requirements"
ENVIRONMENTS = ROOT / "var" / "compare" / "environments"
PYTHONS = {"django_ox": ("3.14", "3.13", "3.12")}
"""The versions of Python that a contender needs, if it does not run on all of ours."""


class NotInstalledError(Exception):
    """A contender that can't be installed here, and why."""


def driver(name: str) -> list[str]:
    """Return the command that runs the adapter of a contender. Installs it first, if it is not there.

    Raises `NotInstalledError`.
    """
    if (REQUIREMENTS / name / "package.json").exists():
        return [_install_node(name), str(HERE / "peers" / f"{name}.mjs")]
    python = _install_python(name) if (REQUIREMENTS / f"{name}.txt").exists() else Path(sys.executable)
    return [str(python), "-m", "benchmarks.compare.drive", name]


def versions(name: str) -> str:
    """Return the version of an installed contender, or an empty string for what is no package."""
    if (REQUIREMENTS / name / "package.json").exists():
        package = ENVIRONMENTS / name / "node_modules" / name / "package.json"
        return _output([_node("node"), "-p", f"require('{package}').version"])
    if not (REQUIREMENTS / f"{name}.txt").exists():
        return ""
    what = f"import importlib.metadata as m; print(m.version('{name.replace('_', '-')}'))"
    return _output([str(ENVIRONMENTS / name / "bin" / "python"), "-c", what])


def _install_python(name: str) -> Path:
    environment, wanted = ENVIRONMENTS / name, REQUIREMENTS / f"{name}.txt"
    python = environment / "bin" / "python"
    if not _is_installed(environment, wanted):
        _run([_python(name), "-m", "venv", "--clear", str(environment)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)])
        _remember(environment, wanted)
    return python


def _install_node(name: str) -> str:
    environment, wanted = ENVIRONMENTS / name, REQUIREMENTS / name / "package.json"
    node, npm = _node("node"), _node("npm")
    if not _is_installed(environment, wanted):
        environment.mkdir(parents=True, exist_ok=True)
        shutil.copy(wanted, environment)
        _run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(environment)])
        _remember(environment, wanted)
    return node


def _python(name: str) -> str:
    if name not in PYTHONS:
        return sys.executable
    found = next(filter(_runs, map(_of_version, PYTHONS[name])), None)
    if found is None:
        raise NotInstalledError(f"it needs one of these versions of Python: {', '.join(PYTHONS[name])}")
    return found


def _of_version(version: str) -> str:
    """Return the path of a Python that pyenv has, or its name on PATH."""
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    return str(of_pyenv[-1]) if of_pyenv else f"python{version}"


def _runs(python: str) -> bool:
    """Return whether this can be run: pyenv leaves names on PATH that lead nowhere."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603


def _node(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise NotInstalledError(f"it needs {program}, which is not on PATH")
    return found


def _is_installed(environment: Path, wanted: Path) -> bool:
    stamp = environment / "installed"
    return stamp.exists() and stamp.read_text() == wanted.read_text()


def _remember(environment: Path, wanted: Path) -> None:
    (environment / "installed").write_text(wanted.read_text())


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise NotInstalledError(last)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
