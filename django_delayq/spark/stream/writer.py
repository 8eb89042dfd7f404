"""Send messages from a stream. Each batch is a write, and one that Spark repeats after a kill sends nothing twice."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.summary import Written
from django_delayq.spark.write.writer import Writer


class StreamWriter(DataSourceStreamArrowWriter):
    """A `pyspark.sql.datasource.DataSourceStreamArrowWriter`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._batch = Writer(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._batch.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # the API's
        self._batch.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # the API's
        self._batch.abort(messages)
