"""The settings of the example shop. Two of them are for django-delayq: the app and DELAYQ."""

from datetime import timedelta
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent.parent
VAR = BASE_DIR / "var"
VAR.mkdir(exist_ok=True)  # SQLite makes its file, but no directory
REDIS_DIR = VAR / "redis"

SECRET_KEY = "not secret: this is an example"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS: list[str] = []
USE_TZ = True
TIME_ZONE = "America/New_York"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_delayq",
    "example_project.shop",
    "example_project.demo",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "example_project.urls"
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
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

# The site and its workers write to one SQLite file: WAL lets them read meanwhile, IMMEDIATE makes them queue to write.
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": VAR / "shop.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}

# Messages are rows of that database. Their timer is a real Redis server that starts by itself and keeps its data in
# REDIS_DIR; a site has "redis://…" here.
DELAYQ: dict[str, dict[str, Any]] = {
    "default": {
        "LOCATION": f"embedded://{REDIS_DIR}",
    }
}

SHOP_CLOSE_AFTER = timedelta(minutes=30)
SHOP_REMIND_AFTER = [timedelta(days=1), timedelta(days=2), timedelta(days=4)]  # each after the one before
SHOP_TEXT_AFTER = timedelta(days=4)
SHOP_INDEX_AFTER = timedelta(seconds=10)  # without another change of the product
SHOP_INDEX_WITHIN = timedelta(minutes=1)  # however often it is changed
SHOP_GATEWAY_TAKES = timedelta(0)  # how long the pretended text message gateway takes for each text
SHOP_SEARCH_TAKES = timedelta(0)  # the pretended search engine, for each call
SHOP_EXPORT_TAKES = timedelta(0)  # an export, for each departure
