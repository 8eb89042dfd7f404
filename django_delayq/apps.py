"""Configure the app. At its start it finds the handlers of all installed apps."""

from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Tags, register
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

from django_delayq import checks  # noqa: F401  registers them
from django_delayq.calendars import find_calendar
from django_delayq.conf import scrubs
from django_delayq.core.human_time import find_calendars_with
from django_delayq.support.logging import keep_safe
from django_delayq.support.sanitize import scrub_with


class DelayqConfig(AppConfig):
    """The app `delayq`.

    At its start it imports each app's `delayed` module (and `tasks`, if Django's tasks run here), registers the checks,
    and makes log lines safe. It runs no query and opens no connection.
    """

    name = "django_delayq"
    label = "delayq"
    verbose_name = _("Delayed messages")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(_check_stores, Tags.database, deploy=True)
        scrub_with(scrubs)
        find_calendars_with(find_calendar)
        keep_safe()
        autodiscover_modules("delayed")
        has_tasks = find_spec("django.tasks") or find_spec("django_tasks")
        if has_tasks and settings.is_overridden("TASKS"):  # type: ignore[misc]  # of LazySettings
            from django_delayq.tasks import autodiscover  # late: it needs the apps and one of these packages

            autodiscover()


def _check_stores(**kwargs: Any) -> list[CheckMessage]:
    from django_delayq.store_checks import check_stores  # late: it needs the worker's modules, and runs only if asked

    return check_stores(**kwargs)
