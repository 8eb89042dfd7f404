"""The settings of the suite. Processes that a test starts get theirs through DELAYQ_TEST and DELAYQ_TEST_DATABASE."""

import json
import os
from typing import Any

SECRET_KEY = "not secret: tests only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "America/New_York"  # not UTC, so that a forgotten zone shows

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_delayq",
    "tests",
]
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DELAYQ_TEST_DATABASE", ":memory:"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    },
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}

DELAYQ: dict[str, dict[str, Any]] = {
    "default": {
        "BROKER": "django_delayq.brokers.memory.MemoryBroker",
        "STORE": None,
        **json.loads(os.environ.get("DELAYQ_TEST", "{}")),  # what a test wants of the processes it starts
    }
}
