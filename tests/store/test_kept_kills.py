"""Workers that are killed while what they run is sent again: no last change is lost."""

from pathlib import Path

from django_delayq.store import DatabaseBackend
from tests.worker.changes import assert_the_last_change_is_seen
from tests.worker.processes import Site


def test_the_last_change_is_seen_whenever_workers_are_killed(
    broker: DatabaseBackend, site: Site, tmp_path: Path
) -> None:
    assert_the_last_change_is_seen(site, tmp_path / "record")
