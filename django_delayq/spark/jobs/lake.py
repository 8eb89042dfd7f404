"""Handle a directory of Parquet files, on any file system that Arrow knows, and the unfinished work in it.

Files that are being made are below `_unfinished`, where no reader of Parquet looks. A job moves rows in chunks. Once
the files of a chunk are whole, a *note* below `_unfinished` says so: if the job is killed then, the next run does the
rest. Files without a note are removed.

A note is signed with SECRET_KEY, because the next run removes what it names: write access to the lake must not be the
right to remove rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.core import signing
from pyarrow import fs

from django_delayq.spark.errors import SparkError
from django_delayq.spark.files import located, parquet_file, writing

UNFINISHED = "_unfinished"
_SALT = "delayq.spark.lake"


@dataclass(frozen=True, slots=True)
class Lake:
    """A directory of Parquet files. `root` is a path, or a URI (hdfs://…, s3://…)."""

    root: str

    def uri(self, path: str) -> str:
        """Return the URI of a path in the lake, for Spark."""
        return f"{self.root.rstrip('/')}/{path}"

    def files(self, path: str) -> list[str]:
        """Return the Parquet files below a directory in order; none if there is no such directory.

        These are the files that a reader would find. A late speculative task of Spark may leave others in `_temporary`.
        """
        filesystem, root = located(self.root)
        selector = fs.FileSelector(f"{root}/{path}", recursive=True, allow_not_found=True)
        found = (each.path for each in filesystem.get_file_info(selector) if each.type == fs.FileType.File)
        below = (name[len(root) + len(path) + 2 :] for name in found if name.endswith(".parquet"))
        return sorted(f"{path}/{name}" for name in below if "/_" not in f"/{name}")

    def exists(self, path: str) -> bool:
        """Return whether there is a file at this path."""
        filesystem, root = located(self.root)
        return bool(filesystem.get_file_info(f"{root}/{path}").type == fs.FileType.File)

    def move(self, start: str, end: str) -> None:
        """Move a file. One that was moved already is left where it is."""
        filesystem, root = located(self.root)
        if self.exists(start):
            with writing(self.root):
                filesystem.create_dir(f"{root}/{end.rpartition('/')[0]}", recursive=True)
                filesystem.move(f"{root}/{start}", f"{root}/{end}")

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it, if it is there."""
        filesystem, root = located(self.root)
        info = filesystem.get_file_info(f"{root}/{path}")
        if info.type == fs.FileType.Directory:
            filesystem.delete_dir(info.path)
        elif info.type == fs.FileType.File:
            filesystem.delete_file(info.path)

    def note(self, chunk: str, says: dict[str, Any]) -> None:
        """Write the note which says that the files of a chunk are whole. It is written wholly or not at all."""
        filesystem, root = located(self.root)
        beside = f"{root}/{UNFINISHED}/{chunk}.part"
        with writing(self.root):
            filesystem.create_dir(f"{root}/{UNFINISHED}", recursive=True)
            with filesystem.open_output_stream(beside) as stream:
                stream.write(signing.dumps(says, salt=_salt(chunk)).encode())
            filesystem.move(beside, f"{root}/{UNFINISHED}/{chunk}.json")

    def forget(self, chunk: str) -> None:
        """Remove a chunk's note and all its unfinished files."""
        for name in (f"{chunk}.json", f"{chunk}.part", chunk):
            self.remove(f"{UNFINISHED}/{name}")

    def unfinished(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Yield the chunks that were begun and not ended, each with its note, or with None if it has none.

        Raises `SparkError` for a note that no job of this site wrote.
        """
        filesystem, root = located(self.root)
        found = filesystem.get_file_info(fs.FileSelector(f"{root}/{UNFINISHED}", allow_not_found=True))
        names = {each.base_name for each in found}
        for chunk in sorted({name.removesuffix(".json").removesuffix(".part") for name in names}):
            if f"{chunk}.json" in names:
                with filesystem.open_input_stream(f"{root}/{UNFINISHED}/{chunk}.json") as stream:
                    yield chunk, self._checked(chunk, stream.read())
            else:
                yield chunk, None

    def _checked(self, chunk: str, note: bytes) -> dict[str, Any]:
        try:
            says: dict[str, Any] = signing.loads(note.decode("ascii", "replace"), salt=_salt(chunk))
        except signing.BadSignature as error:
            path = self.uri(f"{UNFINISHED}/{chunk}.json")
            raise SparkError(
                f"{path} was not written with this site's SECRET_KEY, so nothing was moved or removed. If the key has "
                f"changed, put the old one into SECRET_KEY_FALLBACKS. Else find out who wrote it, and remove it."
            ) from error
        return says

    def column(self, files: list[str], name: str) -> list[Any]:
        """Return one column of some files, with the values of all rows."""
        filesystem, root = located(self.root)
        values: list[Any] = []
        for path in files:
            with parquet_file(filesystem, f"{root}/{path}") as file:
                values += file.read(columns=[name]).column(0).to_pylist()
        return values


def _salt(chunk: str) -> str:
    """Return the salt for the note of one chunk: no other chunk can use it."""
    return f"{_SALT}:{chunk}"
