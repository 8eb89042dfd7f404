"""A child process of a worker imports from where the worker does."""

from pathlib import Path

import pytest

from django_delayq.worker.process.spawn import spawn


def test_a_child_imports_from_the_working_directory_only_if_its_worker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").touch()
    monkeypatch.chdir(tmp_path)
    assert spawn("planted", []).wait() == 1
    monkeypatch.syspath_prepend("")
    assert spawn("planted", []).wait() == 0
