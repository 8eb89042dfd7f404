"""The options of a write."""

from collections.abc import Mapping
from dataclasses import dataclass

from django_delayq.spark.errors import SparkError
from django_delayq.spark.options import Given
from django_delayq.support.validation import check_name


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write, see docs/reference/spark.md. Lengths of time are in ms."""

    settings: str
    using: str
    job: str | None
    """The name of the ledger of sent messages, for an alias without a store."""
    ledger_ms: int
    key: str | None
    queue: str | None
    priority: int | None
    tag: str | None
    id_columns: tuple[str, ...]
    quarantine: str | None
    """The place of bad rows. If it is None, bad rows fail the job."""
    summary: str | None
    patience_ms: int
    """How long a task tries again while a broker or a database is away."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Return the options, checked.

        Raises `SparkError` for one that is unknown or does not fit, with its name, value and fix.
        """
        given = Given(options)
        settings, using = given.site()
        on_bad_row = given.one_of("onBadRow", ("fail", "quarantine"), "fail")
        quarantine = given.text("quarantinePath")
        if on_bad_row == "quarantine" and quarantine is None:
            raise SparkError("option onBadRow='quarantine' needs a place: give quarantinePath, a directory or an URI.")
        found = cls(
            settings=settings,
            using=using,
            job=_name(given, "job"),
            ledger_ms=given.length_ms("ledgerRetention", "30d"),
            key=_name(given, "key"),
            queue=_name(given, "queue"),
            priority=given.priority("priority"),
            tag=_name(given, "tag"),
            id_columns=given.names("idColumns"),
            quarantine=quarantine if on_bad_row == "quarantine" else None,
            summary=given.text("summaryPath"),
            patience_ms=given.length_ms("patience", "30s"),
        )
        given.no_others()
        return found


def _name(given: Given, name: str) -> str | None:
    text = given.text(name)
    try:
        return None if text is None else check_name(text, f"option {name}")
    except ValueError as error:
        raise SparkError(str(error)) from error
