"""`--reload` of code that can't be loaded: waits until it is changed, as Django's runserver does.

A process of its own: that of the worker has ended, since Django loads a site before it starts a command.
"""

import contextlib
import os
import sys

import django
from django.utils import autoreload


def command(loaded_at: float) -> list[str]:
    """The command line that waits, for code that was loaded then (Unix time), or could not be."""
    return [sys.executable, "-m", "django_delayq.worker.broken_code", str(loaded_at)]


def environment() -> dict[str, str]:
    """What it needs to find the same code."""
    paths = os.pathsep.join(filter(None, sys.path))
    return os.environ | {autoreload.DJANGO_AUTORELOAD_ENV: "true", "PYTHONPATH": paths}


def main(loaded_at: float) -> None:
    """Exit with Django's code for changed files once one is changed, or if one was since `loaded_at`."""
    with contextlib.suppress(Exception):  # it was told where it ended the worker; this finds the files to watch
        autoreload.check_errors(django.setup)()
    if any(path.stat().st_mtime > loaded_at for path in autoreload.iter_all_python_module_files()):
        autoreload.trigger_reload("")
    autoreload.run_with_reloader(lambda: None)


if __name__ == "__main__":
    main(float(sys.argv[1]))
