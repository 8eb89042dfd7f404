"""`manage.py demo`: a week of the shop in seconds."""

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_delayq.management.support.arguments import whole_number
from example_project.demo.rabbitmq import free_port


class Command(BaseCommand):
    """Start this process again as the demo, because the demo has settings of its own."""

    help = "Play a week of the shop in under 30 seconds, kill a worker on the way, and count what became of it all."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--broker",
            choices=["redis", "rabbitmq", "database"],
            default="redis",
            help="What times the messages. Default: %(default)s.",
        )
        parser.add_argument(
            "--shards", type=whole_number(1, 64), default=1, metavar="N",
            help="Into how many parts Redis is divided. Default: %(default)s.",
        )  # fmt: skip
        parser.add_argument(
            "--workers", type=whole_number(2, 16), default=2, metavar="N",
            help="How many workers there are; one is killed. Default: %(default)s.",
        )  # fmt: skip
        parser.add_argument(
            "--admin",
            nargs="?",
            const="127.0.0.1:8000",
            metavar="ADDRESS:PORT",
            help="Instead, show the admin on what the demo left, until Ctrl-C. Default: %(const)s.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "example_project.demo.settings"}
        if options["broker"] != "redis" and options["shards"] > 1:
            raise CommandError(f"--shards {options['shards']} is for Redis: leave it out with another broker.")
        environment["DELAYQ_DEMO_BROKER"] = options["broker"]
        if options["broker"] == "rabbitmq":
            environment["DELAYQ_DEMO_AMQP"] = f"amqp://guest:guest@127.0.0.1:{free_port()}"
        if not options["admin"]:
            environment |= {"DELAYQ_DEMO_" + name.upper(): str(options[name]) for name in ("shards", "workers")}
        os.chdir(settings.BASE_DIR)
        what = ["--admin", options["admin"]] if options["admin"] else []
        os.execve(sys.executable, [sys.executable, "-m", "example_project.demo", *what], environment)  # noqa: S606
