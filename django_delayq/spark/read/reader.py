"""The read of one DataFrame. Spark's processes load this module before the site is set up, as with write/writer.py."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from django_delayq.spark.read.filters import Wanted, push
from django_delayq.spark.read.options import ReadOptions
from django_delayq.spark.read.parts import Part
from django_delayq.spark.site import enter


class Reader(DataSourceReader):
    """See `pyspark.sql.datasource.DataSourceReader`. Made on the driver; tasks get copies."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.read.task import parts

        return parts(self._options, self._wanted, alias)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.read.task import read

        if not isinstance(partition, Part):  # of no parts Spark makes one
            return iter(())
        return read(partition, self._options, self._wanted, self._schema, alias)


class FilteringReader(Reader):
    """Does filters where the messages are.

    Not what a read does by itself: PySpark up to 4.3 keeps what it was told last. Of a DataFrame that is used with a
    filter and then again without one, it would silently give what the filter keeps.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # the API's name
        return list(push(filters, self._schema, self._wanted))
