"""The read of one DataFrame. Like write/writer.py, it is loaded by Spark's processes before the site is set up."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from django_delayq.spark.read.filters import Wanted, push
from django_delayq.spark.read.options import ReadOptions
from django_delayq.spark.read.parts import Part
from django_delayq.spark.site import enter


class Reader(DataSourceReader):
    """A `pyspark.sql.datasource.DataSourceReader`. It is made on the driver, and tasks get copies."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.read.task import parts  # late: it imports models

        return parts(self._options, self._wanted, alias)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.read.task import read  # late: it imports models

        if not isinstance(partition, Part):  # if there are no parts, Spark makes one
            return iter(())
        return read(partition, self._options, self._wanted, self._schema, alias)


class FilteringReader(Reader):
    """A reader that filters where the messages are.

    It is not the default, because PySpark up to 4.3 keeps the filters of the last use. A DataFrame that is used with a
    filter and then again without one would silently give only the rows that the filter keeps.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # the API's name
        return list(push(filters, self._schema, self._wanted))
