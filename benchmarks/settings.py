"""The settings of the benchmarks and of the workers that they start. DELAYQ_BENCH_LOCATION says where Redis is."""

import os
from typing import Any

SECRET_KEY = "not secret: benchmarks only"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["django_delayq", "benchmarks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


def delayq_at(location: str) -> dict[str, dict[str, Any]]:
    """DELAYQ with everything but the location at its default."""
    return {"default": {"LOCATION": location, "STORE": None}}


DELAYQ = delayq_at(os.environ.get("DELAYQ_BENCH_LOCATION", "redis://127.0.0.1:6379/0"))
