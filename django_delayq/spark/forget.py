"""Find the files of a lake that hold rows of some messages. It needs Arrow, and no Spark."""

from collections.abc import Collection, Iterator

import pyarrow as pa
from pyarrow import compute as pc, fs, parquet


def files_with(lake: str, ids: Collection[str], tag: str | None) -> Iterator[tuple[str, int]]:
    """Yield each Parquet file below `lake` that has rows with one of the ids, or with the tag, and their number.

    `lake` is a path or a URI. Unfinished files of an archive are included. Raises `OSError` for a place that
    is not there, and for a file that can't be read.
    """
    try:
        filesystem, root = fs.FileSystem.from_uri(lake) if "://" in lake else (fs.LocalFileSystem(), lake.rstrip("/"))
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    except (ValueError, NotImplementedError) as error:
        raise OSError(f"{lake} is no place that can be reached: {error}") from error
    for path in sorted(each.path for each in found if each.type == fs.FileType.File and each.path.endswith(".parquet")):
        try:
            rows = _rows_with(filesystem, path, ids, tag)
        except (OSError, pa.ArrowInvalid) as error:
            raise OSError(f"{path} can't be read: {error}") from error
        if rows:
            yield path, rows


def _rows_with(filesystem: fs.FileSystem, path: str, ids: Collection[str], tag: str | None) -> int:
    wanted = {"id": pa.array(sorted(ids), pa.string()), "tag": pa.array([] if tag is None else [tag], pa.string())}
    rows = 0
    with parquet.ParquetFile(path, filesystem=filesystem) as file:
        columns = [name for name in wanted if name in file.schema_arrow.names]
        if not columns:
            return 0
        for batch in file.iter_batches(columns=columns):
            has = [pc.is_in(batch.column(name).cast(pa.string()), wanted[name]) for name in columns]
            rows += pc.sum(pc.or_(has[0], has[-1])).as_py() or 0
    return rows
