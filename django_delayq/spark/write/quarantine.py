"""Keep bad rows as Parquet, with the reason.

A task's file counts only once the job has succeeded, because a retry of the task writes another file.
"""

import uuid
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyarrow import parquet

from django_delayq.spark.files import located, writing
from django_delayq.spark.write.rows import Bad

REASON = "reason"
_UNFINISHED = "_unfinished"  # no reader of Spark looks at names that begin with "_"


class Quarantine:
    """The bad rows of one task. `path` is a directory, or the URI of one (hdfs://…, s3://…)."""

    def __init__(self, path: str) -> None:
        self._given = path
        self._fs, self._path = located(path)
        self._name = f"{uuid.uuid4()}.parquet"
        self._file: parquet.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch, bad: Sequence[Bad]) -> None:
        """Keep the bad rows of a batch, with their reasons."""
        found = batch.take(pa.array([each.row for each in bad]))
        columns = [column.cast(_nullable(column.type)) for column in found.columns]
        reasons = pa.array([each.reason for each in bad], pa.string())
        rows = pa.RecordBatch.from_arrays([*columns, reasons], names=[*found.schema.names, REASON])
        with writing(self._given):
            if self._file is None:
                self._fs.create_dir(f"{self._path}/{_UNFINISHED}", recursive=True)
                where = f"{self._path}/{_UNFINISHED}/{self._name}"
                self._file = parquet.ParquetWriter(where, rows.schema, filesystem=self._fs, compression="zstd")
            self._file.write_batch(rows)

    def finish(self) -> str | None:
        """Close the file, and return its name; None if there were no bad rows."""
        if self._file is None:
            return None
        with writing(self._given):
            self._file.close()
        return self._name


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Allow null at every level of a type: Parquet refuses a null struct with fields that are never null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _nullable(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    return kind


def publish(path: str, names: Iterable[str]) -> None:
    """Move these files, which were written by tasks whose results count, to where readers find them."""
    filesystem, directory = located(path)
    for name in names:
        filesystem.move(f"{directory}/{_UNFINISHED}/{name}", f"{directory}/{name}")


def discard(path: str, names: Iterable[str]) -> None:
    """Delete the files of tasks that don't count."""
    filesystem, directory = located(path)
    for name in names:
        filesystem.delete_file(f"{directory}/{_UNFINISHED}/{name}")
