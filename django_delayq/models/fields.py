"""Define model fields for the store's tables."""

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_delayq.support.timestamps import from_ms, to_epoch_ms

COLLATIONS = {"mariadb": "utf8mb4_nopad_bin", "mysql": "utf8mb4_0900_bin", "postgresql": "C"}
"""For each `database_name`, a collation that compares text character by character, including spaces at the end."""


def database_name(connection: Any) -> str:
    """Return Django's name of the vendor, except for MariaDB, which Django calls mysql."""
    return "mariadb" if getattr(connection, "mysql_is_mariadb", False) else str(connection.vendor)


class InstantField(models.BigIntegerField):  # type: ignore[type-arg]  # not generic at run time
    """An instant to the millisecond: an aware UTC datetime in Python, epoch milliseconds in the database.

    It is no `DateTimeField`, because that stores times without a zone if USE_TZ is off, or on SQLite and MySQL: one
    hour a year would occur twice. A due time must mean the same to each database, to the broker and to Spark.
    """

    description = _("Instant (to the millisecond)")

    def from_db_value(self, value: int | None, *args: object) -> datetime | None:
        return None if value is None else from_ms(value)

    def to_python(self, value: Any) -> datetime | None:
        if value is None or isinstance(value, datetime):
            return value
        try:
            return from_ms(int(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValidationError(f"{value!r} is no instant; give an aware datetime.") from error

    def get_prep_value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            if timezone.is_naive(value):
                raise ValueError(f"{self.name}={value!r} is naive; give django.utils.timezone.make_aware(value).")
            return to_epoch_ms(value)
        return super().get_prep_value(value)

    def value_to_string(self, obj: models.Model) -> str:
        value = self.value_from_object(obj)
        return "" if value is None else str(to_epoch_ms(value))


class NameField(models.CharField):  # type: ignore[type-arg]  # not generic at run time
    """Text that is compared character by character: "a", "A" and "a " are three ids, on MySQL and MariaDB too.

    Its indexes are ordered in the same way, so that they can find names by their beginning, on PostgreSQL too.
    """

    def db_parameters(self, connection: Any) -> dict[str, Any]:
        parameters = super().db_parameters(connection)
        collation = COLLATIONS.get(database_name(connection))
        if collation:
            parameters["collation"] = collation
        return parameters
