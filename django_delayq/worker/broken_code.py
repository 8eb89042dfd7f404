"""Wait, with `--reload`, until code that can't be loaded is changed, as Django's runserver does.

It is a process of its own: the worker's has ended, because Django loads a site before it starts a command.
"""

import contextlib
import os
import sys

import django
from django.utils import autoreload


def command(loaded_at: float) -> list[str]:
    """Return the command line that waits, for code that was loaded, or could not be, at `loaded_at` (Unix time)."""
    return [sys.executable, "-m", "django_delayq.worker.broken_code", str(loaded_at)]


def environment() -> dict[str, str]:
    """Return the environment in which it finds the same code."""
    paths = os.pathsep.join(filter(None, sys.path))
    return os.environ | {autoreload.DJANGO_AUTORELOAD_ENV: "true", "PYTHONPATH": paths}


def main(loaded_at: float) -> None:
    """Exit with Django's code for changed files once one is changed, or if one was changed since `loaded_at`."""
    with contextlib.suppress(Exception):  # it was told where it ended the worker; this finds the files to watch
        autoreload.check_errors(django.setup)()
    if any(path.stat().st_mtime > loaded_at for path in autoreload.iter_all_python_module_files()):
        autoreload.trigger_reload("")
    autoreload.run_with_reloader(lambda: None)


if __name__ == "__main__":
    main(float(sys.argv[1]))
