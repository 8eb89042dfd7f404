"""The settings of Spark's processes: the suite's, with handlers, and with what tests/spark/conftest.py has started."""

import json
import os
from pathlib import Path

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES as DATABASES_OF_SUITE, INSTALLED_APPS as INSTALLED

_started = json.loads(Path(os.environ["DELAYQ_TEST_SPARK"]).read_text())

INSTALLED_APPS = [*INSTALLED, "tests.spark.site"]
DATABASES = {**DATABASES_OF_SUITE, **_started["DATABASES"]}
DELAYQ = _started["DELAYQ"]
