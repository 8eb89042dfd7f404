"""The table of a hand-written queue, against which the store is measured."""

from typing import ClassVar

from django.db import models


class Job(models.Model):
    """A job that waits to be run. It is deleted in the transaction that runs it."""

    key = models.CharField(max_length=200)
    data = models.JSONField()
    due_at = models.DateTimeField(db_index=True)

    objects: ClassVar[models.Manager["Job"]] = models.Manager()

    def __str__(self) -> str:
        return self.key
