"""`--reload`: Django's autoreloader, with a worker that ends well before the process starts anew."""

import logging
import os
import signal
import threading
from collections.abc import Callable

from django.utils import autoreload

from django_delayq.worker.worker import Worker

_logger = logging.getLogger("django_delayq")


def run_reloading(make_worker: Callable[[], Worker]) -> None:
    """Run a worker that winds down, and starts anew in a new process, when code changes. For development."""
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) != "true":
        # The outer process only starts the inner one again and again; Ctrl-C reaches the inner one by itself.
        signal.signal(signal.SIGINT, lambda signum, frame: None)
        autoreload.run_with_reloader(lambda: None)
        return
    workers: list[Worker] = []
    ended = threading.Event()

    def run() -> None:
        try:
            worker = make_worker()
            workers.append(worker)
            worker.run()
        finally:
            ended.set()

    try:
        autoreload.run_with_reloader(run)
    finally:
        for worker in workers:
            _logger.info("Code changed, or Ctrl-C: finishing what runs.")
            worker.stop()
            ended.wait()
