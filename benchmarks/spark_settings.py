"""The settings of Spark's processes in the benchmarks: two aliases, one with a store and one without."""

import json
import os

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import DATABASES as BASE

_site = json.loads(os.environ["DELAYQ_BENCH_SPARK"])
DATABASES = {**BASE, **_site["DATABASES"]}
DELAYQ = _site["DELAYQ"]
