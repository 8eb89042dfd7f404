"""Merge the small files of a lake. No row is lost or doubled, whenever the job is killed.

Each directory goes through these steps. Between them a reader may miss rows of the directory, but no row is lost:

- The rows of its files are written into one below `_unfinished`.
- A note beside it names the small files and the new one.
- The small files are removed.
- The new file is moved to its place.
- The note is removed.
"""

import re
import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from django_delayq.spark.errors import SparkError
from django_delayq.spark.files import located, parquet_file, writing
from django_delayq.spark.jobs.lake import UNFINISHED, Lake

_CHUNK = re.compile("compact-[0-9a-f-]{36}")
"""The form of a chunk of this job. One of the archive of an alias named "compact" has the name of a table instead."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The number of directories in which several files became one, and the number of those files."""

    directories: int = 0
    files: int = 0


def compact(lake: Lake, table: str) -> Compacted:
    """Merge the files of each directory of a table, if the directory has several."""
    recover(lake)
    by_directory: dict[str, list[str]] = {}
    for path in lake.files(table):
        by_directory.setdefault(path.rpartition("/")[0], []).append(path)
    several = {directory: files for directory, files in by_directory.items() if len(files) > 1}
    for directory, files in several.items():
        chunk = f"compact-{uuid.uuid4()}"
        with writing(lake.root):
            rows = _write(lake, files, f"{UNFINISHED}/{chunk}")
        kept = len(lake.column([f"{UNFINISHED}/{chunk}"], "pk"))
        if kept != rows:
            raise SparkError(f"{kept} of {rows} rows of {directory} were written; the lake was left as it was.")
        note = {"small": files, "one": f"{directory}/{chunk}.parquet"}
        lake.note(chunk, note)
        _end(lake, chunk, note)
    return Compacted(len(several), sum(map(len, several.values())))


def recover(lake: Lake) -> None:
    """Finish each merge of a killed run that has a note, and remove the unfinished file of one that has none."""
    for chunk, note in lake.unfinished():
        if _CHUNK.fullmatch(chunk):
            if note is None:
                lake.forget(chunk)
            else:
                _end(lake, chunk, note)


def _write(lake: Lake, files: list[str], path: str) -> int:
    """Write the rows of the files into one, and return how many there are.

    Only one batch is in memory at a time, because a directory may be larger than the memory.
    """
    filesystem, root = located(lake.root)
    filesystem.create_dir(f"{root}/{UNFINISHED}", recursive=True)
    schemas = []
    for name in files:
        with parquet_file(filesystem, f"{root}/{name}") as file:
            schemas.append(file.schema_arrow)
    schema = pa.unify_schemas(schemas)  # a later version may have archived more columns
    rows = 0
    with parquet.ParquetWriter(f"{root}/{path}", schema, filesystem=filesystem, compression="zstd") as writer:
        for name in files:
            with parquet_file(filesystem, f"{root}/{name}") as file:
                for batch in file.iter_batches():
                    writer.write_batch(_with_columns(batch, schema))
                    rows += batch.num_rows
    return rows


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of the schema; one that it lacks is null."""
    names = set(batch.schema.names)
    columns = [batch[each.name] if each.name in names else pa.nulls(len(batch), each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _end(lake: Lake, chunk: str, note: dict[str, Any]) -> None:
    """Do the steps that follow the note. Each may have been done already."""
    for path in note["small"]:
        lake.remove(path)
    lake.move(f"{UNFINISHED}/{chunk}", note["one"])
    lake.forget(chunk)
