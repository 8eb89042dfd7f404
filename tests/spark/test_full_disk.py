"""A disk that is full is told in a line; then nothing is lost and nothing is there twice, once there is room again."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from pyarrow import parquet
from pyspark.sql import SparkSession

from django_delayq.spark.errors import SparkError, reason_of
from django_delayq.spark.files import write_whole
from django_delayq.spark.jobs import archive as job
from django_delayq.spark.jobs.compact import Compacted, compact
from django_delayq.spark.jobs.lake import Lake
from tests.spark.ended import finish
from tests.spark.support import STORED, waiting, write
from tests.spark.test_archive import LATER, in_lake, in_table, tallies


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"No small file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> Path:
    """Take all room that there is."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def test_an_archive_loses_nothing_and_keeps_nothing_twice(
    spark: SparkSession, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(STORED, range(20))
    lake = Lake(str(disk / "lake"))
    ballast = fill(disk)
    with pytest.raises(CommandError, match=rf"^stored: .*{lake.root}.*No space left on device$"):
        call_command("delayq_spark", "archive", "--using", STORED, "--lake", lake.root, "--before", "0s")
    assert (in_lake(spark, lake), in_table(STORED)) == ([], list(range(20)))
    ballast.unlink()

    write_chunk = job._write

    def and_fill(*args: Any) -> None:
        write_chunk(*args)
        fill(disk)

    with monkeypatch.context() as patch:  # there is room for the rows, but not to note that they are whole
        patch.setattr(job, "_write", and_fill)
        with pytest.raises(SparkError, match=rf"{lake.root} can't be written: .*No space left on device"):
            job.archive(spark, STORED, lake, "finish", LATER, chunk_rows=10)
    assert (in_lake(spark, lake), in_table(STORED)) == ([], list(range(20)))
    ballast.unlink()
    assert job.archive(spark, STORED, lake, "finish", LATER, chunk_rows=10).rows == 20
    assert (in_lake(spark, lake), in_table(STORED)) == (list(range(20)), [])
    assert tallies(STORED) == {"finished": 20}

    ballast = fill(disk)
    with pytest.raises(SparkError, match=f"{lake.root} can't be written: "):
        compact(lake, "finish")
    assert sorted(lake.column(lake.files("finish"), "pk")) == list(range(20))
    ballast.unlink()
    assert compact(lake, "finish") == Compacted(directories=2, files=4)
    assert sorted(lake.column(lake.files("finish"), "pk")) == list(range(20))
    assert list(lake.unfinished()) == []


def test_a_write_sends_nothing_twice_and_keeps_every_bad_row(spark: SparkSession, disk: Path, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'note' AS key, if(id < 9, string(id), null) AS id FROM range(10)").coalesce(1)
    bad = {"onBadRow": "quarantine", "quarantinePath": str(disk / "bad")}
    ballast = fill(disk)
    with pytest.raises(Exception, match="No space left on device") as failure:
        write(rows, STORED, tmp_path, **bad)
    assert reason_of(failure.value).startswith(f"{disk / 'bad'} can't be written: ")
    ballast.unlink()
    again = write(rows, STORED, tmp_path, **bad)
    assert (again.read, again.quarantined, waiting(STORED)) == (10, 1, 9)
    assert len(parquet.read_table(disk / "bad")) == 1


def test_no_half_of_a_picture_or_a_page_is_left(disk: Path) -> None:
    ballast = fill(disk)
    picture = disk / "forecast.svg"
    with pytest.raises(SparkError, match=rf"{picture} can't be written: .*No space left on device"):
        write_whole(str(picture), "<svg/>")
    assert list(disk.iterdir()) == [ballast]
    ballast.unlink()
    write_whole(str(picture), "<svg/>")
    assert picture.read_text() == "<svg/>"
