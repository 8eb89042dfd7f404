"""Prints the pages of a site in the look of django-unfold, as JSON: the HTML by the name of the page."""

import json
import sys

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

from django_delayq import Every, schedule_delay_message  # noqa: E402
from django_delayq.brokers import get_backend  # noqa: E402
from django_delayq.models import ErrorMessage, ReadyMessage, Schedule  # noqa: E402
from django_delayq.store import DatabaseBackend  # noqa: E402
from tests.admin.support import ask, bury, finish, page, pk_of, send, url  # noqa: E402

call_command("migrate", verbosity=0)
broker = get_backend()
assert isinstance(broker, DatabaseBackend)
send("order:1:close", {"order": 1}, delay="1h", tag="customer:7")
finish(broker, "order:2:close", data={"order": 2})
bury(broker, "order:3:close", data={"order": 3}, error="ValueError: no order 3", fingerprint="ValueError in shop")
schedule_delay_message("order.close", {"order": 4}, name="order:4", every=Every(minutes=15))
schedule = Schedule.objects.get().pk
client = Client()
client.force_login(User.objects.create_superuser("root"))
failed, waits = pk_of("default", "order:3:close", ErrorMessage), pk_of("default", "order:1:close")
shown = {
    "dashboard": client.get("/admin/delayq/"),
    "pause": client.get(url("readymessage", "dashboard", "pause")),
    **{name: client.get(url(name)) for name in ("readymessage", "finishmessage", "errormessage")},
    "range": client.get(url("readymessage"), {"due_from": "2026-01-01T00:00"}),
    "messages": client.get(url("anymessage"), {"q": "order:*"}),
    "groups": client.get(url("errormessage", "groups")),
    "message": client.get(url("errormessage", failed, "change")),
    "edit": client.get(url("errormessage", failed, "payload")),
    "confirm": ask(client, ErrorMessage, "rescue", [failed]),
    "schedules": client.get(url("schedule")),
    "schedule": client.get(url("schedule", schedule, "change")),
    "schedule edit": client.get(url("schedule", schedule, "edit")),
    "schedule backfill": client.get(url("schedule", schedule, "backfill")),
    "reschedule": ask(client, ReadyMessage, "reschedule", [waits]),
}
json.dump({name: page(response) for name, response in shown.items()}, sys.stdout)
