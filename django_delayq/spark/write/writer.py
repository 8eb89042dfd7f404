"""The write of one DataFrame: tasks check and send, the driver counts.

Spark's processes load this module before the site is set up, so methods import what needs the site after that.
"""

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from django_delayq.spark.errors import SparkError
from django_delayq.spark.site import enter
from django_delayq.spark.write import quarantine
from django_delayq.spark.write.columns import check_columns
from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.summary import Written, total
from django_delayq.support.logging import logger


class Writer(DataSourceArrowWriter):
    """A `pyspark.sql.datasource.DataSourceArrowWriter`. It is made on the driver, and tasks get copies."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SparkError("A write adds messages and removes none: use mode('append').")
        check_columns(schema, options)
        alias = enter(options.settings, options.using)
        from django_delayq.spark.write.task import check_site  # late: it imports models

        check_site(alias, options)
        self._options = options
        self._began = time.time()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.write.task import write  # late: it imports models

        return write(iterator, self._options, alias)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        alias = enter(self._options.settings, self._options.using)
        from django_delayq.spark.write.task import tell_timer  # late: it imports models

        written = [message for message in messages if isinstance(message, Written)]
        if self._options.quarantine:
            quarantine.publish(self._options.quarantine, _files(written))
        tell_timer(alias)
        summary = total(written, time.time() - self._began)
        logger.info("%s", summary)
        if self._options.summary:
            summary.save(self._options.summary)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.quarantine:
            quarantine.discard(self._options.quarantine, _files(messages))


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [each.quarantine_file for each in messages if isinstance(each, Written) and each.quarantine_file]
