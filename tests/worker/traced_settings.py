"""The settings of worker processes whose spans a test reads."""

from tests.worker.settings import *  # noqa: F403
from tests.worker.settings import INSTALLED_APPS as INSTALLED

INSTALLED_APPS = [*INSTALLED, "tests.worker.traced"]
