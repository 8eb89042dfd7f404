"""Register the handlers of django-delayq itself: the admin's jobs, if a site has the admin and a store."""

from django.apps import apps

from django_delayq.conf import valid_aliases

if apps.is_installed("django.contrib.admin"):
    from django_delayq.admin.bulk.jobs import register

    for alias in valid_aliases():
        if alias.store is not None:
            register(alias.name)
