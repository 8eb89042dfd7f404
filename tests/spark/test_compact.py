"""Small files become one, with every row once, whenever the job is killed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs import compact as job
from django_delayq.spark.jobs.compact import Compacted, compact
from django_delayq.spark.jobs.lake import Lake
from tests.spark.test_archive import Killed, kill_at

PLACE = "finish/date=2026-01-01/of_key=a"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three small files in one directory, and a fourth in another."""
    for number, place in enumerate([PLACE, PLACE, PLACE, "finish/date=2026-01-02/of_key=a"]):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"pk": [2 * number, 2 * number + 1]}), tmp_path / place / f"{number}.parquet")
    return Lake(str(tmp_path))


def test_each_directory_has_one_file_with_all_rows(lake: Lake) -> None:
    assert compact(lake, "finish") == Compacted(directories=1, files=3)
    files = lake.files("finish")
    assert len(files) == 2
    assert sorted(lake.column(files, "pk")) == list(range(8))
    assert compact(lake, "finish") == Compacted()


def test_what_a_late_task_left_is_no_file_of_the_lake(lake: Lake) -> None:
    files = lake.files("finish")
    left = Path(lake.root, "finish/_temporary/0", PLACE)
    left.mkdir(parents=True)
    (left / "0.parquet").write_bytes(b"PAR1")
    assert lake.files("finish") == files


def test_what_is_no_parquet_is_named_and_nothing_is_lost(lake: Lake) -> None:
    torn = Path(lake.root, PLACE, "torn.parquet")
    torn.write_bytes(b"PAR1")
    with pytest.raises(SparkError, match=f"{torn} can't be read: "):
        compact(lake, "finish")
    torn.unlink()
    assert compact(lake, "finish") == Compacted(directories=1, files=3)
    assert sorted(lake.column(lake.files("finish"), "pk")) == list(range(8))
    with pytest.raises(SparkError, match=r"^there://is/none is no place that can be reached: "):
        compact(Lake("there://is/none"), "finish")


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [(job, "_write", 1), (Lake, "note", 1), (Lake, "remove", 1), (Lake, "remove", 3), (Lake, "move", 1)],
)
def test_a_job_that_is_killed_at_any_step_is_ended_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, owner, name, call, after=True)
        with pytest.raises(Killed):
            compact(lake, "finish")
    compact(lake, "finish")
    files = lake.files("finish")
    assert len(files) == 2
    assert sorted(lake.column(files, "pk")) == list(range(8))
    assert list(lake.unfinished()) == []


def test_what_the_archive_of_an_alias_named_compact_has_begun_is_left_to_it(lake: Lake) -> None:
    lake.note("compact-finish-1-9", {"moves": {}})
    assert compact(lake, "finish") == Compacted(directories=1, files=3)
    assert list(lake.unfinished()) == [("compact-finish-1-9", {"moves": {}})]


def test_a_column_that_a_later_version_archived_is_kept_and_null_in_older_rows(lake: Lake) -> None:
    newer = pa.table({"pk": [100], "version": pa.array([2], pa.int32())})
    parquet.write_table(newer, Path(lake.root, PLACE, "newer.parquet"))
    assert compact(lake, "finish") == Compacted(directories=1, files=4)
    (file,) = [name for name in lake.files("finish") if PLACE in name]
    assert dict(zip(lake.column([file], "pk"), lake.column([file], "version"), strict=True)) == {
        **dict.fromkeys(range(6)),
        100: 2,
    }
