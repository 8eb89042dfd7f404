"""The access of one alias to its Redis: the client, the shards, and what the timer and the queue share."""

from typing import TypeVar

from django_delayq.brokers.redis.claim_planner import ClaimPlanner
from django_delayq.brokers.redis.client import BUDGET, Client, ErrorFactory, Operation, gather, parse_location
from django_delayq.brokers.redis.confirm import Confirming
from django_delayq.brokers.redis.layout import Layout
from django_delayq.brokers.redis.maintenance import MaintenanceSchedule
from django_delayq.brokers.redis.poll_ownership import PollOwnership
from django_delayq.brokers.redis.shards import Shards
from django_delayq.brokers.redis.slots import Slots
from django_delayq.brokers.redis.waiter import Waiter
from django_delayq.conf import Alias
from django_delayq.core.errors import BrokerUnavailable, PartlyUnavailable

R = TypeVar("R")

LOOK_BUDGET = 60.0
"""Seconds that a query of everything (audit, failed messages, an id among them) may take, in many round trips."""


class Access:
    """Runs operations, and keeps what several of the broker's parts know."""

    def __init__(self, alias: Alias) -> None:
        self.options = alias.options
        self.location = parse_location(alias.location)
        self.client = Client(self.location)
        self.shards = Shards(alias.options.prefix, alias.options.shards)
        self.layout = Layout(self.shards)
        self.confirming = Confirming(alias.options.confirm, self.shards)
        self.slots = Slots()
        self.waiter = Waiter(self.client, [keys.channel for keys in self.shards.all])
        self.ownership = PollOwnership(self.shards.all, self.client.node_of, self.waiter.hears)
        self.planner = ClaimPlanner(self.shards, self.slots, self.waiter, self.ownership)
        self.maintenance = MaintenanceSchedule(alias, self.shards.all, self.planner, self.ownership, self.client)

    def open(self) -> None:
        """Connect, and check that the shards are those that other processes use."""
        self.client.run(gather([self.layout.agree(), self.confirming.ask()]))

    def close(self) -> None:
        """Close every connection, and end a running `wait`."""
        self.waiter.close()
        self.client.close()

    def run(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Return the result of an operation. After `budget` seconds raise the error that `on_unavailable` makes."""
        try:
            return self.client.run(self.layout.agreed(operation), budget, on_unavailable)
        except BrokerUnavailable:
            self.maintenance.ask_all()
            raise

    async def arun(
        self, operation: Operation[R], budget: float = BUDGET, on_unavailable: ErrorFactory = BrokerUnavailable
    ) -> R:
        """Return the result of an operation like `run`, without blocking the event loop."""
        return await self.client.arun(self.layout.agreed(operation), budget, on_unavailable)

    def hear(self, away: str) -> None:
        """Raise why some shards were not reached, if there are such. Then the next maintenance asks all shards."""
        if away:
            self.maintenance.ask_all()
            raise PartlyUnavailable(away)
