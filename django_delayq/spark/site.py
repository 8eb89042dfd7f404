"""Set up the Django site in the Python processes of Spark, which plan, read and write, and start without a site."""

import gc
import os

import django
from django.conf import settings

from django_delayq.conf import Alias, get_alias
from django_delayq.spark.errors import SparkError

VARIABLE = "DJANGO_SETTINGS_MODULE"


def settings_module(given: str | None) -> str:
    """Return the settings module that the option `settings` names, or else the environment.

    Raises `SparkError` if neither does.
    """
    module = given or os.environ.get(VARIABLE)
    if not module:
        raise SparkError(f"Which site? Set {VARIABLE}, or give option('settings', 'mysite.settings').")
    return module


def enter(module: str, using: str) -> Alias:
    """Set the site up in this process, and return one alias of its DELAYQ. Raises like `set_up`."""
    set_up(module)
    return get_alias(using)


def set_up(module: str) -> None:
    """Set the site up in this process, unless that was done before.

    Raises `SparkError` if the module is not here: a cluster needs the site's code on every node.
    """
    if not settings.configured:
        os.environ[VARIABLE] = module
        try:
            django.setup()
        except ImportError as error:
            raise SparkError(f"The site {module!r} can't be imported in a process of Spark: {error}") from error
        gc.freeze()  # PySpark collects garbage after each task, and would visit all that is loaded: 0.1 s
