"""Define the indexes of the store's tables that differ from one database vendor to another."""

from typing import Any

from django.db import models


class PageIndex(models.Index):
    """An index for reading rows page by page, in the order of `fields`. The last field is mostly the primary key.

    On PostgreSQL the last field is written as an expression. Otherwise PostgreSQL might use this index to look up a
    row by its primary key, and read the whole index: after a vacuum of a table without live rows, as a queue often is,
    it expects no rows, so that every index seems equally cheap. And rows in the order of the expression are read by
    this index: no other index has that order.
    """

    def create_sql(self, model: type[models.Model], schema_editor: Any, using: str = "", **options: Any) -> Any:
        if schema_editor.connection.vendor != "postgresql":
            return super().create_sql(model, schema_editor, using, **options)
        *order, last = self.fields
        index = models.Index(*order, models.F(last) + 0, name=self.name, condition=self.condition)
        return index.create_sql(model, schema_editor, using, **options)


class ShareIndex(PageIndex):
    """A `PageIndex` whose first field, a text, is written as an expression on PostgreSQL, too.

    So no other index finds rows by the first field as it is written in a query of shares. Otherwise PostgreSQL, which
    expects a row or two of each (queue, key) until the table has statistics, would read all rows of the pair by the
    index of due times for each share, and sort them.
    """

    def create_sql(self, model: type[models.Model], schema_editor: Any, using: str = "", **options: Any) -> Any:
        if schema_editor.connection.vendor != "postgresql":
            return super().create_sql(model, schema_editor, using, **options)
        first, *order, last = self.fields
        text = models.Func(models.F(first), models.Value(""), template="(%(expressions)s)", arg_joiner=" || ")
        index = models.Index(text, *order, models.F(last) + 0, name=self.name, condition=self.condition)
        return index.create_sql(model, schema_editor, using, **options)


class PartialIndex(PageIndex):
    """A partial `PageIndex`, for the rows of `condition`.

    On every vendor but PostgreSQL, the condition's `column` is inserted after the first field. MySQL and MariaDB have
    no partial indexes, so they need the column. SQLite has no statistics until somebody runs ANALYZE; without them it
    prefers the index with the most columns that are compared with `=`. PostgreSQL drops a comparison that the condition
    implies, so it could not use the fields after the column.
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
