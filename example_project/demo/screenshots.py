"""`make screenshots`: make the images of the admin in docs/images, on what the demo left, by the system's Chromium."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.error import URLError
from urllib.request import urlopen

import django

django.setup()

from django.conf import settings  # noqa: E402
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402

from django_delayq import Cron, Every, pause_delay_schedules, schedule_delay_message  # noqa: E402
from django_delayq.models import ErrorMessage, Schedule  # noqa: E402
from example_project.demo import look, report  # noqa: E402
from example_project.demo.waiting import wait_for  # noqa: E402
from example_project.demo.workers import await_workers  # noqa: E402
from example_project.shop.delayed import remind_customer  # noqa: E402

ADDRESS = "127.0.0.1:8765"
IMAGES = Path(settings.BASE_DIR, "docs", "images")
DESK, WIDE, TALL, PHONE = (1200, 800), (1500, 800), (1200, 1750), (390, 780)


@dataclass(frozen=True, slots=True)
class Shot:
    """An image: its name, its page below the index, the size and scheme of the browser, and what is done there."""

    name: str
    page: str = ""
    size: tuple[int, int] = DESK
    scheme: Literal["light", "dark"] = "light"
    act: Callable[[Page], object] | None = None


def shots() -> list[Shot]:
    """Return the images. The failed message is the one that the demo left."""
    failed = f"errormessage/{ErrorMessage.objects.get(key='store.text').pk}/change/"
    return [
        Shot("dashboard"),
        Shot("dashboard-dark", scheme="dark"),
        Shot("dashboard-phone", size=PHONE),
        Shot("list", "readymessage/?queue=default", size=WIDE),
        Shot("messages", "anymessage/?q=order:*"),
        Shot("messages-dark", "anymessage/?q=order:*", scheme="dark"),
        Shot("messages-phone", "anymessage/?q=order:*", size=PHONE),
        Shot("message", failed),
        Shot("message-dark", failed, scheme="dark"),
        Shot("message-phone", failed, size=PHONE),
        Shot("schedules", "schedule/", size=WIDE),
        Shot("schedule", f"schedule/{Schedule.objects.get(name='remind:17').pk}/change/"),
        Shot("schedule-form", "schedule/add/", size=TALL, act=preview_schedule),
    ]


def preview_schedule(page: Page) -> None:
    """Fill in the form of a schedule, and look at what it would do."""
    page.get_by_label("Name:").fill("remind:20")
    page.get_by_label("Key:").select_option(remind_customer.key)
    page.get_by_label("Payload:").fill("4")
    page.get_by_label("Rule:").fill("every weekday at 9:00")
    page.get_by_label("Time zone:").fill("Europe/Rome")
    page.get_by_label("Window:").fill("mon-fri 10:00-18:00")
    page.get_by_role("button", name="Preview").click()


def leave_parked() -> None:
    """Send a reminder to a queue that no worker serves: something that needs a person."""
    remind_customer.send(1, queue="newsletter", id="order:1:remind:newsletter", tag="order:1")


def leave_schedules() -> None:
    """Write schedules: one for a customer's mornings, one that is paused, and one with a cron expression."""
    nine = Every(days=1, time="09:00", zone="Europe/Rome")
    schedule_delay_message(remind_customer.key, 1, name="remind:17", every=nine, tag="order:1")
    in_the_week = Cron("0 18 * * 1-5", zone="America/New_York")
    schedule_delay_message(remind_customer.key, 2, name="remind:18", every=in_the_week)
    at_the_end = Every(months=1, business_day=-1, time="17:00", zone="Asia/Kathmandu")
    schedule_delay_message(remind_customer.key, 3, name="remind:19", every=at_the_end)
    pause_delay_schedules("remind:19", reason="the customer is away")


def take(browser: Browser, all_shots: list[Shot]) -> None:
    """Log in, and take each image in turn."""
    for shot in all_shots:
        width, height = shot.size
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=shot.scheme)
        log_in(page)
        page.goto(f"http://{ADDRESS}/admin/delayq/{shot.page}")
        if shot.act:
            shot.act(page)
        page.screenshot(path=IMAGES / f"{shot.name}.png")
        page.close()


def log_in(page: Page) -> None:
    page.goto(f"http://{ADDRESS}/admin/login/?next=/admin/delayq/")
    page.get_by_label("Username").fill(look.NAME)
    page.get_by_label("Password").fill(look.PASSWORD)
    page.get_by_role("button", name="Log in").click()


def is_served() -> bool:
    """Return whether the site answers."""
    try:
        with urlopen(f"http://{ADDRESS}/admin/login/"):
            return True
    except URLError:
        return False


def main() -> int:
    """Make all images. Return the exit code."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not (look.has_played() and chromium):
        report.say("The screenshots need what `make demo` leaves, and Chromium: apt-get install chromium.")
        return 1
    leave_schedules()
    all_shots = shots()
    IMAGES.mkdir(exist_ok=True)
    with look.served(ADDRESS):
        leave_parked()
        await_workers(1)
        wait_for("the site", is_served)
        with sync_playwright() as playwright:
            take(playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]), all_shots)
    return 0


if __name__ == "__main__":
    sys.exit(main())
