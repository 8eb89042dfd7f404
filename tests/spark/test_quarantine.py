"""Bad rows are kept with the reason, of the tasks that count alone."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from django_delayq.spark.write.quarantine import Quarantine, discard, publish
from django_delayq.spark.write.rows import Bad


def kept(path: Path, *rows: int) -> str:
    """What a task keeps: some of three rows, one of them without data, whose fields Spark says are never null."""
    struct = pa.struct([pa.field("a", pa.int64(), nullable=False), ("m", pa.map_(pa.string(), pa.int64()))])
    batch = pa.RecordBatch.from_pydict({"data": pa.array([{"a": 1}, {"a": 2, "m": [("x", 1)]}, None], struct)})
    quarantine = Quarantine(str(path))
    for row in rows:
        quarantine.add(batch, [Bad(row, f"bad {row}")])
    name = quarantine.finish()
    assert name is not None
    return name


def test_the_rows_of_each_batch_are_kept_whole(tmp_path: Path) -> None:
    publish(str(tmp_path), [kept(tmp_path, 1, 2)])
    rows = parquet.read_table(tmp_path).to_pylist()
    assert rows == [
        {"data": {"a": 2, "m": [("x", 1)]}, "reason": "bad 1"},
        {"data": None, "reason": "bad 2"},
    ]


def test_what_a_task_that_does_not_count_has_kept_is_not_seen(tmp_path: Path) -> None:
    first, again = kept(tmp_path, 0), kept(tmp_path, 0)
    discard(str(tmp_path), [first])
    assert list(tmp_path.glob("*.parquet")) == []
    publish(str(tmp_path), [again])
    assert len(parquet.read_table(tmp_path)) == 1


def test_a_uri_is_as_good_as_a_path(tmp_path: Path) -> None:
    name = kept(tmp_path, 0)
    publish(tmp_path.as_uri(), [name])
    assert (tmp_path / name).exists()


def test_a_task_without_bad_rows_writes_nothing(tmp_path: Path) -> None:
    assert Quarantine(str(tmp_path)).finish() is None
    assert list(tmp_path.iterdir()) == []
