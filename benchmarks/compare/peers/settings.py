"""The settings of the contenders that are Django apps. COMPARE_PEER says which one."""

import json
import os
from typing import Any

import django

PEER = os.environ["COMPARE_PEER"]
SERVER = json.loads(os.environ["COMPARE_POSTGRES"])
OURS = ["django_delayq", "benchmarks.compare.peers.app"]
APPS = {
    "django_tasks_db": ["django_tasks_db"],
    "django_ox": ["django_ox"],
    "by_hand": ["benchmarks"],
}
DJANGO_TASKS = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
BACKENDS: dict[str, dict[str, Any]] = {
    "django_tasks_db": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    "django_ox": {"BACKEND": "django_ox.backend.OxBackend", "OPTIONS": {"LOCK_TIMEOUT": 15}},
    "django_immediate": {"BACKEND": f"{DJANGO_TASKS}.backends.immediate.ImmediateBackend"},
    "django_dummy": {"BACKEND": f"{DJANGO_TASKS}.backends.dummy.DummyBackend"},
}
REDIS = {"LOCATION": f"unix://{os.environ['COMPARE_REDIS']}"}
ALIASES: dict[str, dict[str, Any]] = {
    "delayq": REDIS,
    "delayq_tasks": REDIS,
    "delayq_redis": {**REDIS, "STORE": None},
    "delayq_database": {"BROKER": "django_delayq.brokers.database.DatabaseBroker"},
}

SECRET_KEY = "not secret: benchmarks only"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = APPS.get(PEER, OURS)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": SERVER["host"],
        "PORT": SERVER["port"],
        "USER": SERVER["user"],
        "NAME": SERVER["dbname"],
        "CONN_MAX_AGE": 600,
    }
}
TASKS = {"default": BACKENDS.get(PEER, {"BACKEND": "django_delayq.tasks.DelayqBackend"})}
DELAYQ = {"default": ALIASES.get(PEER, REDIS)}
