"""The settings of the benchmarks, and of the workers that they start, which read theirs from the environment."""

import json
import os
from importlib import import_module
from typing import Any

SECRET_KEY = "not secret: benchmarks only"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_delayq",
    "benchmarks",
    *os.environ.get("DELAYQ_BENCH_APP", "").split(),
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "benchmarks.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    **json.loads(os.environ.get("DELAYQ_BENCH_DATABASES", "{}")),
}

if any(database["ENGINE"].endswith("mysql") for database in DATABASES.values()):
    import_module("pymysql").install_as_MySQLdb()  # Django asks for mysqlclient

REDIS = "django_delayq.brokers.redis.RedisBroker"
ALONE = "django_delayq.brokers.database.DatabaseBroker"
"""The broker for the database alone."""


def delayq_at(
    location: str,
    store: dict[str, Any] | None = None,
    database: str = "default",
    shards: int | None = None,
    broker: str = REDIS,
) -> dict[str, Any]:
    """Return DELAYQ with this broker, store, database and number of shards, and everything else at its default."""
    delayq = {"BROKER": broker, "LOCATION": location, "STORE": store, "DATABASE": database}
    if broker == ALONE:
        del delayq["LOCATION"]  # the database alone has none
    return {"default": delayq if shards is None else {**delayq, "OPTIONS": {"shards": shards}}}


DELAYQ = delayq_at(
    os.environ.get("DELAYQ_BENCH_LOCATION", "redis://127.0.0.1:6379/0"),
    json.loads(os.environ.get("DELAYQ_BENCH_STORE", "null")),
    shards=json.loads(os.environ.get("DELAYQ_BENCH_SHARDS", "null")),
    broker=os.environ.get("DELAYQ_BENCH_BROKER", REDIS),
)
