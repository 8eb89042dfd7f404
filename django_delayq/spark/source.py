"""The data source `delayq`, through the Python Data Source API of PySpark 4.1 and newer."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.writer import Writer


class DelayqSource(DataSource):
    """`df.write` sends a message per row: see docs/reference/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "delayq"

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(WriteOptions.of(self._given), schema, overwrite)
