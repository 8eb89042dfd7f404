"""The options of a read."""

from collections.abc import Mapping
from dataclasses import dataclass

from django_delayq.spark.options import Given
from django_delayq.spark.read.shapes import SOURCES, WAITING


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, see docs/reference/spark.md."""

    settings: str
    using: str
    source: str
    """The source of the rows: "waiting", or one of the tables."""
    columns: tuple[str, ...]
    """The columns to read; none means all."""
    partitions: int
    page_rows: int
    push_filters: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Return the options, checked.

        Raises `SparkError` for one that is unknown or does not fit, with its name, value and fix.
        """
        given = Given(options)
        settings, using = given.site()
        found = cls(
            settings=settings,
            using=using,
            source=given.one_of("table", SOURCES, WAITING),
            columns=given.names("columns"),
            partitions=given.count("partitions", 8),
            page_rows=given.count("pageRows", 10_000),
            push_filters=given.one_of("pushFilters", ("true", "false"), "false") == "true",
        )
        given.no_others()
        return found
