"""An index of the store's tables on few of their rows."""

from typing import Any

from django.db import models


class PartialIndex(models.Index):
    """An index on the rows of `condition`, by `fields`; but on PostgreSQL with `column`, which the condition is on,
    behind the first of them.

    PostgreSQL compares no column whose value the condition says, so it could not go by what stands behind it. MySQL and
    MariaDB, which have no conditions, go by the column instead, and SQLite, which has no statistics until somebody runs
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
