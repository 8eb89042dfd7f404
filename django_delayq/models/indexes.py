"""An index of the store's tables that covers only a few of their rows."""

from typing import Any

from django.db import models


class PartialIndex(models.Index):
    """A partial index on `fields`, for the rows of `condition`.

    On every vendor but PostgreSQL, `column`, which the condition is on, is inserted after the first field. PostgreSQL
    drops a comparison whose value the condition already implies, so it could not use the fields behind it. MySQL and
    MariaDB, which have no conditions, use the column instead. SQLite, which has no statistics until somebody runs
    ANALYZE, takes the index with the most columns that are equal to something.
    """

    def __init__(self, *, column: str, **options: Any) -> None:
        super().__init__(**options)
        self.column = column

    def create_sql(self, model: type[models.Model], schema_editor: Any, using: str = "", **options: Any) -> Any:
        if schema_editor.connection.vendor == "postgresql":
            return super().create_sql(model, schema_editor, using, **options)
        first, *rest = self.fields
        index = models.Index(fields=[first, self.column, *rest], name=self.name, condition=self.condition)
        return index.create_sql(model, schema_editor, using, **options)

    def deconstruct(self) -> Any:
        path, arguments, options = super().deconstruct()
        return path, arguments, {**options, "column": self.column}
