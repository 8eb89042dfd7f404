"""Wait for workers that empty tables."""

from time import monotonic, sleep

from django.db.models import Model

from django_delayq.models import FinishMessage
from tests.worker.processes import PATIENCE_S, WorkerProcess


def until_empty(workers: list[WorkerProcess], database: str, *models: type[Model]) -> None:
    """Wait until these tables are empty. It may take long, but one message must end after the other.

    Each message that two workers held when they were killed runs alone in a process of its own, hundreds of them.
    """
    ended, until = -1, 0.0
    while any(model._default_manager.using(database).exists() for model in models):
        if (count := FinishMessage.objects.using(database).count()) != ended:
            ended, until = count, monotonic() + PATIENCE_S
        assert monotonic() < until, "\n=====\n".join([worker.text[-6000:] for worker in workers])
        sleep(0.1)
