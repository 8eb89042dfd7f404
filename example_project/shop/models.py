"""Orders and their reminders, stores and their products, departures and their exports, and what the handlers did."""

from datetime import datetime, timedelta

from django.db import models
from django.utils import timezone


class Order(models.Model):
    """An order. It waits for its payment, and is then paid or closed."""

    class State(models.TextChoices):
        OPEN = "open"
        PAID = "paid"
        CLOSED = "closed"

    email = models.EmailField()
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    opened_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"Order {self.pk} of {self.email}"


class Reminder(models.Model):
    """A reminder that was sent. One row for each message, so that no customer gets one twice."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="reminders")
    message_id = models.CharField(max_length=200, unique=True)
    sent_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"Reminder {self.message_id}"


class Store(models.Model):
    """A store that someone opened with us. It should have products soon."""

    name = models.CharField(max_length=100)
    phone = models.CharField(max_length=20)
    texted_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


class Product(models.Model):
    """Something that a store sells. `version` counts its changes, so that all can see what the search has missed."""

    store = models.ForeignKey(Store, on_delete=models.CASCADE, related_name="products")
    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField(default=1)

    def __str__(self) -> str:
        return self.name


class SearchDocument(models.Model):
    """A product as the search knows it. A site has a search engine; that of the shop is this table."""

    product = models.OneToOneField(Product, on_delete=models.CASCADE, primary_key=True, related_name="document")
    text = models.CharField(max_length=100)
    version = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.text


class Catalogue(models.Model):
    """A list of product names that a store has sent. Once all of them have ended, the row says what became of them."""

    store = models.ForeignKey(Store, on_delete=models.CASCADE, related_name="catalogues")
    batch_id = models.CharField(max_length=200)
    rows = models.PositiveIntegerField()
    added = models.PositiveIntegerField(null=True)
    failed = models.PositiveIntegerField(null=True)

    def __str__(self) -> str:
        return f"Catalogue {self.pk} of {self.store_id}"


class Departure(models.Model):
    """A flight. The shop at the airport takes orders for it until its check-in closes."""

    CHECKIN_CLOSES_BEFORE = timedelta(minutes=60)

    flight = models.CharField(max_length=10)
    origin = models.CharField(max_length=3)
    dest = models.CharField(max_length=3)
    departs_at = models.DateTimeField()
    checkin_closed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.flight} {self.origin}-{self.dest}"

    @property
    def checkin_closes_at(self) -> datetime:
        """Return the time 60 minutes before the departure, as elapsed time."""
        return self.departs_at - self.CHECKIN_CLOSES_BEFORE


class Export(models.Model):
    """A list of departures that somebody has asked for, of one airport or of all. It is written whole or not at all."""

    origin = models.CharField(max_length=3, blank=True)
    lines = models.TextField(blank=True)
    written_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"Export {self.pk} of {self.origin or 'all airports'}"


class Run(models.Model):
    """One run of a handler, written by `runs.recorded`. The pages show these, and the demo counts them."""

    class Outcome(models.TextChoices):
        RUNNING = "running"  # or its worker was killed
        FINISHED = "finished"
        FAILED = "failed"
        CANCELLED = "cancelled"

    message_id = models.CharField(max_length=200, db_index=True)
    key = models.CharField(max_length=200)
    attempt = models.PositiveIntegerField()
    token = models.BigIntegerField()
    worker_pid = models.PositiveIntegerField()
    due_at = models.DateTimeField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome, default=Outcome.RUNNING)

    def __str__(self) -> str:
        return f"{self.message_id}, attempt {self.attempt}: {self.outcome}"

    @property
    def lateness(self) -> timedelta:
        """Return how long after its due time the run started."""
        return self.started_at - self.due_at
