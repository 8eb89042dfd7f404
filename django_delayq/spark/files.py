"""Read and write files that are whole or missing, with errors that name the place."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import fs, parquet
from pyspark.sql import DataFrame

from django_delayq.spark.errors import SparkError


def located(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path on it. Raises `SparkError` if it can't be reached."""
    if "://" not in path:
        return fs.LocalFileSystem(), path.rstrip("/")
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(path)
    except (OSError, ValueError, NotImplementedError) as error:
        raise SparkError(f"{path} is no place that can be reached: {error}") from error
    return found


@contextmanager
def parquet_file(filesystem: fs.FileSystem, path: str) -> Iterator[parquet.ParquetFile]:
    """Open a Parquet file for the block. Raises `SparkError` if it is missing, broken, or not Parquet."""
    try:
        file = parquet.ParquetFile(path, filesystem=filesystem)
    except (OSError, pa.ArrowInvalid) as error:
        raise SparkError(f"{path} can't be read: {error} Remove it, or mend it, and run this again.") from error
    with file:
        yield file


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise `SparkError` with the place if the file system refuses or is full: Arrow's errors don't name the place."""
    try:
        yield
    except OSError as error:
        raise SparkError(
            f"{path} can't be written: {error}. Make room there, or mend it, and run this again."
        ) from error


def write_whole(path: str, content: str | bytes) -> None:
    """Write a file on the driver's machine, wholly or not at all. Raises `SparkError` if that fails."""
    beside = Path(f"{path}.part")
    with writing(path):
        try:
            beside.write_bytes(content.encode() if isinstance(content, str) else content)
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


def write_tables(tables: dict[str, DataFrame]) -> None:
    """Replace tables, each a directory of Parquet, with new rows. Raises `SparkError` if that fails.

    Whenever this is killed, each table is whole or missing, and no new table is beside an old one.
    """
    for path, rows in tables.items():
        # To one file: if there were several, some would be there before the others.
        rows.repartition(1).write.mode("overwrite").option("compression", "zstd").parquet(_beside(path))
    for path in reversed(tables):
        _remove(path)
    for path in tables:
        _place(path)


def _beside(path: str) -> str:
    return f"{path.rstrip('/')}.part"


def _remove(path: str) -> None:
    filesystem, place = located(path)
    with writing(path):
        if filesystem.get_file_info(place).type == fs.FileType.Directory:
            filesystem.delete_dir(place)


def _place(path: str) -> None:
    filesystem, beside = located(_beside(path))
    _, place = located(path)
    written = filesystem.get_file_info(fs.FileSelector(beside))
    (file,) = (each.path for each in written if each.path.endswith(".parquet"))
    with writing(path):
        filesystem.create_dir(place, recursive=True)
        filesystem.move(file, f"{place}/rows.parquet")
        filesystem.delete_dir(beside)
