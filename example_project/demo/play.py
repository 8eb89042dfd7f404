"""Play the demo from its first line to its last: set it up, play a week of the shop, and end it."""

import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_delayq import DelayqError
from django_delayq.brokers import get_backend
from django_delayq.monitor import status
from example_project.demo import report, size
from example_project.demo.broker import Backend, broker_of_demo
from example_project.demo.figures import Figures, count, differences_to
from example_project.demo.promises import (
    Promises,
    change_products,
    export_departures,
    import_catalogue,
    open_orders,
    open_stores,
    send_departures,
)
from example_project.demo.tables import kinds_by_table
from example_project.demo.uses import uses
from example_project.demo.waiting import NotInTime, wait_for
from example_project.demo.workers import Worker, await_workers, kill_amid_handlers, start_worker
from example_project.shop.departures import NEW_YORK, read_departures
from example_project.shop.exports import cancel_export, export_id, message_of
from example_project.shop.models import Departure, Export, Run

DEPARTURES = Path(settings.BASE_DIR, "example_project", "data", "departures_2013-11-03.csv")
OPENING = datetime(2013, 11, 3, tzinfo=NEW_YORK)
ORDERS = 60
PAID_EACH = 4
PHONES = [f"+1 212 555 01{number:02}" for number in range(5, 31, 2)] + ["+1 212 555 0000"]
STORES_WITH_PRODUCTS = 4
TEAS = ["Assam", "Bancha", "Ceylon", "Darjeeling", "Keemun", "Matcha", "Oolong", "Sencha"]
CHANGES_EACH = 8
CATALOGUE = [f"Cup {number}" for number in range(1, 40)] + [""]
AIRPORT = "LGA"


def play() -> int:
    """Play the demo and return its exit code: 1 if a message was early, lost or doubled, or something differs."""
    broker = broker_of_demo()
    workers: list[Worker] = []
    try:
        set_up(broker)
        workers += [start_worker(settings.VAR / f"worker-{number}.log") for number in range(1, size.workers() + 1)]
        figures = play_week(workers, broker)
        stop(workers)
        report.show_tables(kinds_by_table())
        report.show_figures(figures)
        counted = list(uses())
        report.show_uses(counted)
        differences = differences_to(figures, get_backend().queue.audit().totals)
        report.show_differences(differences)
        call_command("delayq", "audit")
    except (NotInTime, DelayqError, CommandError) as error:
        report.say(str(error))
        return 1
    finally:
        tear_down(workers, broker)
    report.show_where_to_look()
    return 0 if figures.is_kept and all(use.adds_up for use in counted) and not differences else 1


def set_up(broker: Backend) -> None:
    """Start from nothing: an empty broker, and a database with the departures."""
    broker.stop()
    shutil.rmtree(settings.VAR)
    settings.VAR.mkdir()
    (settings.VAR / size.LAST_SHARDS).write_text(str(shards()))
    broker.start()
    call_command("migrate", verbosity=0)
    Departure.objects.bulk_create(read_departures(DEPARTURES))


def play_week(workers: Sequence[Worker], broker: Backend) -> Figures:
    """Send the messages of a week, kill a worker amid its handlers, empty the broker, and count when all is done."""
    promises = Promises()
    await_workers(len(workers))
    divided = f", over {shards()} shards" if shards() > 1 else ""
    report.say(f"{len(workers)} workers are up{divided}. A day lasts {report.day()}.")
    send_departures(Departure.objects.all(), OPENING, timezone.now(), promises)
    open_orders(ORDERS, paid_each=PAID_EACH, promises=promises)
    open_stores(PHONES, with_products=STORES_WITH_PRODUCTS, promises=promises)
    import_catalogue(CATALOGUE, promises)
    report.say(f"{len(promises.due)} messages are sent. The check-ins of the first day close.")
    change_products(TEAS, times=CHANGES_EACH)
    report.say(f"{len(TEAS)} products of a store are renamed {CHANGES_EACH} times each, as fast as that goes.")
    killed = kill_amid_handlers(workers)
    report.say(f"Worker {killed.pid} is killed (SIGKILL) while it sends texts. {others_of(workers)} on.")
    report.say(f"{broker.lose_all()}. The tables have every message.")
    cancel_amid_run(export_departures("", promises), promises)
    export_departures(AIRPORT, promises)
    wait_for("the end of all messages", nothing_is_left, seconds=60)
    buried = {error.id for error in get_backend().queue.failed(len(promises.due))}
    return count(promises, list(Run.objects.all()), buried, killed.pid)


def cancel_amid_run(export: Export, promises: Promises) -> None:
    """Cancel an export as soon as it says how far it is."""

    def progress() -> str:
        message = message_of(export)
        return message.progress.text if message and message.progress else ""

    seen = wait_for(f"the progress of {export}", progress)
    promises.stopped.append(([export_id(export)], cancel_export(export, by="the demo")))
    report.say(f"{export} has come to {seen} departures. It is cancelled while it runs; {AIRPORT} alone will do.")


def shards() -> int:
    """Return into how many parts the broker is divided."""
    return int(settings.DELAYQ["default"]["OPTIONS"]["shards"])


def others_of(workers: Sequence[Worker]) -> str:
    """Return the beginning of a sentence about the workers that are not killed."""
    return "The other one goes" if len(workers) == 2 else f"The other {len(workers) - 1} go"


def nothing_is_left() -> bool:
    """Return whether no message waits or runs."""
    now = status()
    return not (now.pending or now.ready or now.running or now.suspects)


def stop(workers: Iterable[Worker]) -> None:
    """Ask the workers that live to stop, and wait until they have."""
    living = [worker for worker in workers if worker.poll() is None]
    for worker in living:
        worker.terminate()
    wait_for("the end of the workers", lambda: all(worker.poll() is not None for worker in living))


def tear_down(workers: Iterable[Worker], broker: Backend) -> None:
    """Stop all processes, however the demo went."""
    for worker in workers:
        worker.kill()
        worker.wait()
    broker.stop()
