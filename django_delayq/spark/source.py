"""The data source `delayq`, for the Python Data Source API of PySpark 4.2 and newer."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from django_delayq.spark.read.options import ReadOptions
from django_delayq.spark.read.reader import FilteringReader, Reader
from django_delayq.spark.read.shapes import schema_of
from django_delayq.spark.read.stream_options import StreamOptions
from django_delayq.spark.stream.reader import StreamReader
from django_delayq.spark.stream.writer import StreamWriter
from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.writer import Writer


class DelayqSource(DataSource):
    """The data source. `write` sends a message per row, `read` gives a row per message; both may be streams.

    See docs/reference/spark.md.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "delayq"

    def schema(self) -> StructType:
        # A stream and a read both ask for it, and each checks its own options.
        given = {name.lower(): value for name, value in self._given.items()}
        if "startingfrom" in given:
            stream = StreamOptions.of(self._given)
            return schema_of(stream.source, stream.columns)
        options = ReadOptions.of(self._given)
        return schema_of(options.source, options.columns)

    def reader(self, schema: StructType) -> Reader:
        options = ReadOptions.of(self._given)
        return FilteringReader(options, schema) if options.push_filters else Reader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(WriteOptions.of(self._given), schema, overwrite)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # the API's name
        return StreamReader(StreamOptions.of(self._given), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # the API's name
        return StreamWriter(WriteOptions.of(self._given), schema, overwrite)
