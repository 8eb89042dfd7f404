"""A site in the look of django-unfold, whose templates take the place of Django's own."""

from django.templatetags.static import static

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as INSTALLED

INSTALLED_APPS = ["unfold", *INSTALLED]
UNFOLD = {"STYLES": [lambda request: static("delayq/unfold.css")]}
DELAYQ = {
    "default": {"BROKER": "django_delayq.testing.VirtualTimeBroker", "OPTIONS": {"unknown_keys": "allow"}},
}
