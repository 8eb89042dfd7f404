"""Without a store, workers that are killed while what they run is sent again: no last change is lost."""

from pathlib import Path

from tests.worker.changes import assert_the_last_change_is_seen
from tests.worker.processes import Site


def test_the_last_change_is_seen_whenever_workers_are_killed(site: Site, tmp_path: Path) -> None:
    site.env["DELAYQ_TEST_RECORD"] = str(tmp_path / "record")
    assert_the_last_change_is_seen(site, tmp_path / "record")
