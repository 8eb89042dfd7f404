"""The shop's settings with a database, a Redis and a lake of the demo's own."""

import os
from pathlib import Path

from example_project import settings as shop
from example_project.settings import *  # noqa: F403

VAR = Path(os.environ.get("SPARK_DEMO_VAR", shop.VAR / "spark-demo"))
VAR.mkdir(parents=True, exist_ok=True)
LAKE = VAR / "lake"
REDIS_DIR = VAR / "redis"
DEPARTURES = shop.BASE_DIR / "example_project/data/departures_2013-01.csv.gz"

DATABASES = {"default": {**shop.DATABASES["default"], "NAME": VAR / "shop.sqlite3"}}
DELAYQ = {"default": {"LOCATION": f"embedded://{REDIS_DIR}"}}
