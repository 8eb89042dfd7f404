"""The data source, but for a stream that is killed where it would commit. Spark's processes load it."""

import os
import signal
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from django_delayq.spark.source import DelayqSource
from django_delayq.spark.stream.writer import StreamWriter
from django_delayq.spark.write.options import WriteOptions


class KilledWriter(StreamWriter):
    """Writes, and is killed before it commits."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # the API's
        os.kill(os.getpid(), signal.SIGKILL)


class KilledSource(DelayqSource):
    """`format("killed")`."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> KilledWriter:  # noqa: N802  # the API's name
        return KilledWriter(WriteOptions.of(self._given), schema, overwrite)
