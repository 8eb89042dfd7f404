"""The handlers of django-delayq itself: the admin's jobs, where a site has the admin and a store."""

from collections.abc import Iterator

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from django_delayq.conf import alias_names, get_alias


def _stored() -> Iterator[str]:
    try:
        yield from (name for name in alias_names() if get_alias(name).store is not None)
    except ImproperlyConfigured:
        return  # the system checks tell, which run later


if apps.is_installed("django.contrib.admin"):
    from django_delayq.admin.jobs import register

    for name in _stored():
        register(name)
