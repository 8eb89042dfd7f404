"""What ended moves into the lake: none lost and none twice, whenever the job is killed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from django_delayq.brokers import get_backend
from django_delayq.conf import get_alias
from django_delayq.models import ErrorMessage, FinishMessage, ReadyMessage, Tally
from django_delayq.spark.errors import SparkError
from django_delayq.spark.jobs import archive as job
from django_delayq.spark.jobs.archive import archive, read_lake
from django_delayq.spark.jobs.lake import UNFINISHED, Lake
from tests.docs.site import ROOT
from tests.spark.ended import MINUTE, START, fail, finish
from tests.spark.killed import CHUNK, STEPS as STEPS_OF_PROCESS
from tests.spark.support import CARRIED, EMBEDDED, STORED

LATER = START + timedelta(days=1)


class Killed(BaseException):
    """The job ends here, and nothing of it runs any more."""


def in_lake(spark: SparkSession, lake: Lake, table: str = "finish") -> list[int]:
    """The pks that the lake holds."""
    rows = read_lake(spark, lake, table)
    return [] if rows is None else sorted(row.pk for row in rows.select("pk").collect())


def in_table(using: str) -> list[int]:
    return sorted(FinishMessage.objects.using(get_alias(using).database).values_list("pk", flat=True))


def tallies(using: str) -> dict[str, int]:
    return dict(Tally.objects.using(get_alias(using).database).values_list("name", "count"))


@pytest.mark.parametrize("using", [STORED, EMBEDDED])
def test_what_ended_before_moves_and_what_ended_later_stays(
    spark: SparkSession, using: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finish(using, range(8))
    fail(using, [20])
    lake = Lake(str(tmp_path))
    with caplog.at_level("INFO", "django_delayq.audit"):
        done = archive(spark, using, lake, "finish", START + 6 * MINUTE, chunk_rows=4)
    audited = [record.getMessage() for record in caplog.records if record.name == "django_delayq.audit"]
    assert [line.split()[-2] for line in audited] == ["rows=4", "rows=2"]
    assert all(line.startswith("archive who=") and "of=finish" in line for line in audited)
    assert (done.rows, done.chunks, done.recovered) == (6, 2, 0)
    assert in_lake(spark, lake) == [0, 1, 2, 3, 4, 5]
    assert in_table(using) == [6, 7]
    assert tallies(using) == {"finished": 6}
    assert archive(spark, using, lake, "error", LATER).rows == 1
    assert tallies(using) == {"finished": 6, "dropped": 1}
    assert get_backend(using).queue.audit().differences == []
    directories = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.glob("finish/**/*.parquet")}
    assert "finish/date=2026-01-02/of_key=a" in directories
    (row,) = [row for row in read_lake(spark, lake, "finish").collect() if row.pk == 2]  # type: ignore[union-attr]
    assert (row.id, row.key, row.outcome, row.ended_at.timestamp()) == (
        "m2",
        "b/c=d",
        "finished",
        (START + 2 * MINUTE + timedelta(seconds=3)).timestamp(),
    )


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """End the job at the `call`th call of one of its steps."""
    step: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def killed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Killed
        result = step(*args, **kwargs)
        if calls == call:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, killed)


STEPS = [
    (job, "_write", 1, True),
    (Lake, "note", 1, True),
    (Lake, "move", 1, True),
    (job, "remove", 1, True),
    (job, "_take", 1, True),
    (Lake, "forget", 2, False),
]


def test_a_job_that_is_killed_at_every_step_loses_nothing_and_keeps_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    finish(STORED, range(24))
    lake = Lake(str(tmp_path))
    for owner, name, call, after in STEPS:
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, owner, name, call, after=after)
            with pytest.raises(Killed):
                archive(spark, STORED, lake, "finish", LATER, chunk_rows=4)
        assert set(in_lake(spark, lake)) | set(in_table(STORED)) == set(range(24)), name
    archive(spark, STORED, lake, "finish", LATER, chunk_rows=24)
    assert in_lake(spark, lake) == list(range(24))
    assert in_table(STORED) == []
    assert tallies(STORED) == {"finished": 24}
    assert list(lake.unfinished()) == []


def test_what_the_job_of_another_alias_has_begun_is_left_to_it(spark: SparkSession, tmp_path: Path) -> None:
    lake, chunk = Lake(str(tmp_path)), f"{STORED}-b-finish-1-4"
    lake.note(chunk, {})
    archive(spark, STORED, lake, "finish", LATER)
    assert list(lake.unfinished()) == [(chunk, {})]


@pytest.mark.usefixtures("spark")
def test_a_process_killed_at_any_step_loses_nothing_and_keeps_nothing_twice(
    spark_env: dict[str, str], tmp_path: Path
) -> None:
    lakes = [Lake(str(tmp_path / str(number))) for number in range(len(STEPS_OF_PROCESS))]
    pks = {lake: range(4 * number, 4 * number + 4) for number, lake in enumerate(lakes)}
    for lake in lakes:
        finish(STORED, pks[lake])
        for number, pk in enumerate(pks[lake]):
            place = Path(lake.root, UNFINISHED, CHUNK, "date=2026-01-02", f"of_key={number % 2}")
            place.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pa.table({"pk": [pk]}), place / f"part-{number}.parquet")
    command = [sys.executable, "-m", "tests.spark.killed", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **spark_env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for step, lake in zip(STEPS_OF_PROCESS, lakes, strict=True):
        job.recover(lake, job.database_of(STORED))
        kept = lake.column(lake.files("finish"), "pk") + [pk for pk in in_table(STORED) if pk in pks[lake]]
        assert sorted(kept) == list(pks[lake]), step
        assert list(lake.unfinished()) == [], step
    assert in_table(STORED) == [*pks[lakes[0]], *pks[lakes[1]]]  # there was no note yet: given back
    assert tallies(STORED) == {"finished": 4 * (len(lakes) - 2)}


def test_what_leaves_the_table_while_it_is_archived_is_not_in_the_lake(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(STORED, range(4))
    lake = Lake(str(tmp_path))
    using = get_alias(STORED).database
    write = job._write

    def rescued_meanwhile(*args: Any) -> None:
        write(*args)
        error = ErrorMessage.objects.using(using).filter(pk=2).first()
        if error is not None:
            get_backend(STORED).queue.rescue([error.message_id])

    monkeypatch.setattr(job, "_write", rescued_meanwhile)
    done = archive(spark, STORED, lake, "error", LATER)
    assert (done.rows, done.empty_tries) == (3, 1)
    assert in_lake(spark, lake, "error") == [0, 1, 3]
    assert list(ReadyMessage.objects.using(using).values_list("pk", flat=True)) == [2]


@pytest.mark.usefixtures("spark")
def test_who_can_write_to_the_lake_can_not_have_rows_removed(tmp_path: Path) -> None:
    finish(STORED, range(4))
    lake, database = Lake(str(tmp_path)), job.database_of(STORED)
    start, note = place(lake, "stored-finish-0-1", [0, 1]), tmp_path / UNFINISHED / "stored-finish-0-1.json"
    false = {"table": "finish", "moves": {start: "finish/0.parquet"}, "rows": job._digest([0, 1])}
    note.write_text(json.dumps(false))
    with pytest.raises(SparkError, match=r"finish-0-1\.json was not written with this site's SECRET_KEY"):
        job.recover(lake, database)
    lake.note("stored-finish-2-3", job._note(lake, "finish", "stored-finish-0-1"))
    note.write_bytes((tmp_path / UNFINISHED / "stored-finish-2-3.json").read_bytes())  # of another chunk
    with pytest.raises(SparkError, match="was not written with"):
        job.recover(lake, database)
    lake.note("stored-finish-0-1", job._note(lake, "finish", "stored-finish-0-1"))
    place(lake, "stored-finish-0-1", [2, 3])  # after the note
    with pytest.raises(SparkError, match="hold other rows than they were written with, so no row was removed"):
        job.recover(lake, database)
    assert in_table(STORED) == [0, 1, 2, 3]


def place(lake: Lake, chunk: str, pks: list[int]) -> str:
    """Write the unfinished file of a chunk, and return where."""
    path = f"{UNFINISHED}/{chunk}/date=2026-01-02/of_key=a/part-0.parquet"
    Path(lake.root, path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"pk": pks}), Path(lake.root, path))
    return path


def test_there_is_nothing_to_archive_without_a_store(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="has no store"):
        archive(spark, CARRIED, Lake(str(tmp_path)), "finish", LATER)
    with pytest.raises(SparkError, match="give 'finish' or 'error'"):
        archive(spark, STORED, Lake(str(tmp_path)), "ready", LATER)
