"""What one task reads."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass
class Part(InputPartition):
    """Part of what is read."""


@dataclass
class KeyRange(Part):
    """The rows of a table whose pk is over `after`, and at most `last`."""

    after: int
    last: int


@dataclass
class WaitSets(Part):
    """What waits under these names ("queue:key") in one shard of a broker that carries messages."""

    shard: int
    names: list[str]


@dataclass
class EndedBetween(Part):
    """What transactions from `start` on, up to but not with `end`, have put into a table."""

    start: int
    end: int
