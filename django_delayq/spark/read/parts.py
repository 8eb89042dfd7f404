"""The parts of a read, one for each task."""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass
class Part(InputPartition):
    """A part of a read."""


@dataclass
class KeyRange(Part):
    """The rows of a table whose pk is over `after`, and at most `last`."""

    after: int
    last: int


@dataclass
class WaitSets(Part):
    """A part to read: the wait sets `names` ("queue:key") in one shard of a storeless broker."""

    shard: int
    names: list[str]


@dataclass
class EndedBetween(Part):
    """The rows that the transactions numbered from `start` up to, but not including, `end` have put into a table."""

    start: int
    end: int
