"""The options for reading a stream."""

from collections.abc import Mapping
from dataclasses import dataclass

from django_delayq.spark.errors import SparkError
from django_delayq.spark.options import Given


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options for reading a stream. See docs/reference/spark.md."""

    settings: str
    using: str
    source: str
    columns: tuple[str, ...]
    start: str
    page_rows: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamOptions":
        """Return the options, checked.

        Raises `SparkError` for one that is unknown or does not fit, with its name, value and fix.
        """
        given = Given(options)
        settings, using = given.site()
        if given.text("table") is None:
            raise SparkError("A stream follows what has ended: give option('table', 'finish'), or 'error'.")
        found = cls(
            settings=settings,
            using=using,
            source=given.one_of("table", ("finish", "error"), "finish"),
            columns=given.names("columns"),
            start=given.one_of("startingFrom", ("earliest", "latest"), "latest"),
            page_rows=given.count("pageRows", 10_000),
        )
        given.no_others()
        return found
