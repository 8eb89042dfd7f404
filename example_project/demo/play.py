"""The demo from its first line to its last: a week of the shop, its setting up and its end."""

import shutil
import signal
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from django_delayq.brokers import get_broker
from django_delayq.brokers.redis import embedded
from example_project.demo import report
from example_project.demo.figures import Figures, count
from example_project.demo.promises import Promises, open_orders, open_stores, send_departures
from example_project.demo.waiting import NotInTime, wait_for
from example_project.demo.workers import Worker, await_workers, kill_amid_handlers, start_worker
from example_project.shop.departures import NEW_YORK, read_departures
from example_project.shop.models import Departure, Run

DEPARTURES = Path(settings.BASE_DIR, "example_project", "data", "departures_2013-11-03.csv")
OPENING = datetime(2013, 11, 3, tzinfo=NEW_YORK)
WORKERS = 2
ORDERS = 60
PAID_EACH = 4
PHONES = [f"+1 212 555 01{number:02}" for number in range(5, 31, 2)] + ["+1 212 555 0000"]
STORES_WITH_PRODUCTS = 4


def play() -> int:
    """Play the demo and return its exit code: 1 when a message was early, lost or doubled, or the audit differs."""
    set_up()
    workers = [start_worker(settings.VAR / f"worker-{number}.log") for number in range(1, WORKERS + 1)]
    try:
        figures = play_week(workers)
        stop(workers)
        differences = get_broker().audit().differences
    except NotInTime as error:
        report.say(str(error))
        return 1
    finally:
        tear_down(workers)
    report.show_figures(figures)
    report.show_audit(differences)
    report.show_where_to_look()
    return 0 if figures.is_kept and not differences else 1


def set_up() -> None:
    """Start from nothing: an empty Redis, and a database with the departures."""
    embedded.stop(settings.REDIS_DIR)
    shutil.rmtree(settings.VAR)
    settings.VAR.mkdir()
    call_command("migrate", verbosity=0)
    Departure.objects.bulk_create(read_departures(DEPARTURES))


def play_week(workers: list[Worker]) -> Figures:
    """Send the messages of a week, kill a worker amid its handlers, and count when all is done."""
    promises = Promises()
    await_workers(len(workers))
    report.say(f"{len(workers)} workers are up. A day lasts {report.day()}.")
    send_departures(Departure.objects.all(), OPENING, timezone.now(), promises)
    open_orders(ORDERS, paid_each=PAID_EACH, promises=promises)
    open_stores(PHONES, with_products=STORES_WITH_PRODUCTS, promises=promises)
    report.say(f"{len(promises.due)} messages are sent. The check-ins of the first day close.")
    killed = kill_amid_handlers(workers)
    report.say(f"Worker {killed.pid} is killed (SIGKILL) while it sends texts. The other one goes on.")
    wait_for("the end of all messages", nothing_is_left, seconds=25)
    buried = {error.id for error in get_broker().errors(len(promises.due))}
    return count(promises, list(Run.objects.all()), buried, killed.pid)


def nothing_is_left() -> bool:
    """Whether no message waits or runs."""
    counts = get_broker().counts()
    return not counts.running and not any(waiting.pending or waiting.ready for waiting in counts.waiting)


def stop(workers: list[Worker]) -> None:
    """Ask the workers that live to stop, and wait until they have."""
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
            worker.wait(timeout=10)


def tear_down(workers: list[Worker]) -> None:
    """Leave no process behind, however the demo went."""
    for worker in workers:
        worker.kill()
        worker.wait()
    get_broker().close()
    embedded.stop(settings.REDIS_DIR)
