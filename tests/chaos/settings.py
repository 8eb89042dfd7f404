"""The settings of the processes of a round: the suite's, with the handlers of chaos."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as INSTALLED

INSTALLED_APPS = [*INSTALLED, "tests.chaos.site"]
