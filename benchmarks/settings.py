"""The settings of the benchmarks and of the workers that they start, which get theirs through the environment."""

import json
import os
from typing import Any

SECRET_KEY = "not secret: benchmarks only"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["django_delayq", "benchmarks"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    **json.loads(os.environ.get("DELAYQ_BENCH_DATABASES", "{}")),
}


def delayq_at(location: str, store: dict[str, Any] | None = None, database: str = "default") -> dict[str, Any]:
    """DELAYQ with everything but its places at its default."""
    return {"default": {"LOCATION": location, "STORE": store, "DATABASE": database}}


DELAYQ = delayq_at(
    os.environ.get("DELAYQ_BENCH_LOCATION", "redis://127.0.0.1:6379/0"),
    json.loads(os.environ.get("DELAYQ_BENCH_STORE", "null")),
)
