"""The settings of the suite. Processes that a test starts get theirs through DELAYQ_TEST and DELAYQ_TEST_DATABASES."""

import json
import os
from typing import Any

import pymysql

pymysql.install_as_MySQLdb()  # Django asks for mysqlclient, which a fresh machine would have to compile

SECRET_KEY = "not secret: tests only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "America/New_York"  # not UTC, so that a forgotten zone shows

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_delayq",
    "tests",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
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
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # logging in is not what is tested
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def sqlite(name: str) -> dict[str, Any]:
    """Return what DATABASES says of a file that several processes use."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }


DATABASES = {
    "default": sqlite(":memory:"),
    "other": sqlite(":memory:"),
    **json.loads(os.environ.get("DELAYQ_TEST_DATABASES", "{}")),
}

DELAYQ: dict[str, dict[str, Any]] = {
    "default": {
        "BROKER": "django_delayq.brokers.memory.MemoryBroker",
        "STORE": None,
        **json.loads(os.environ.get("DELAYQ_TEST", "{}")),  # what a test wants of the processes it starts
    }
}
