"""The settings of worker processes that tests start: the suite's, with handlers."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as INSTALLED

INSTALLED_APPS = [*INSTALLED, "tests.worker.site"]
