"""The shop's settings with a database, a Redis and a pace of the demo's own."""

import os
from datetime import timedelta

from example_project import settings as shop
from example_project.demo.pace import shorten
from example_project.demo.size import shards
from example_project.settings import *  # noqa: F403

VAR = shop.VAR / "demo"
VAR.mkdir(exist_ok=True)
REDIS_DIR = VAR / "redis"

DATABASES = {"default": {**shop.DATABASES["default"], "NAME": VAR / "shop.sqlite3"}}
DELAYQ = {
    "default": {
        **shop.DELAYQ["default"],
        "LOCATION": f"embedded://{REDIS_DIR}",
        # A killed worker's messages run again when their leases end. That is up to 16 s at the default of 15 s.
        "OPTIONS": {"lease": "3s", "shards": shards(VAR)},
    }
}
if amqp := os.environ.get("DELAYQ_DEMO_AMQP"):  # make demo BROKER=rabbitmq
    DELAYQ["default"] |= {"BROKER": "django_delayq.brokers.rabbitmq.RabbitMQBroker", "LOCATION": amqp}
if os.environ.get("DELAYQ_DEMO_BROKER") == "database":  # make demo BROKER=database
    DELAYQ["default"]["BROKER"] = "django_delayq.brokers.database.DatabaseBroker"
    del DELAYQ["default"]["LOCATION"]

SHOP_CLOSE_AFTER = shorten(shop.SHOP_CLOSE_AFTER)
SHOP_REMIND_AFTER = [shorten(delay) for delay in shop.SHOP_REMIND_AFTER]
SHOP_TEXT_AFTER = shorten(shop.SHOP_TEXT_AFTER)
SHOP_INDEX_AFTER = timedelta(milliseconds=300)
SHOP_INDEX_WITHIN = timedelta(milliseconds=600)
SHOP_GATEWAY_TAKES = timedelta(seconds=1)  # long enough to kill a worker meanwhile
SHOP_SEARCH_TAKES = timedelta(milliseconds=300)  # long enough for another change meanwhile
SHOP_EXPORT_TAKES = timedelta(milliseconds=10)  # 9 s for all departures, long enough to cancel it meanwhile
