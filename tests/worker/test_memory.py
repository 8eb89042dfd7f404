"""What a process takes, and a limit that it is over before it begins."""

from pathlib import Path

import pytest

from django_delayq.worker import maintenance

MIB = 1024**2


def test_what_a_process_takes_grows_and_shrinks_with_it() -> None:
    before = maintenance.resident()
    grown = b"x" * (64 * MIB)
    after = maintenance.resident()
    assert 60 * MIB < after - before < 80 * MIB
    assert grown
    del grown
    assert maintenance.resident() < after - 60 * MIB


def test_where_the_system_does_not_tell_it_is_the_most_it_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = maintenance.resident()
    monkeypatch.setattr(maintenance, "_STATM", tmp_path / "missing")
    assert now * 0.9 < maintenance.resident() < now * 100


def test_a_limit_that_is_passed_before_the_first_message_is_refused() -> None:
    with pytest.raises(maintenance.MemoryRefused, match=r"--max-memory 10B is less than the \d+MiB .* such as 512MiB"):
        maintenance.check_limit(10)
    with pytest.raises(
        maintenance.MemoryRefused, match=r"--max-memory 1MiB is less than the \d+MiB that this worker takes"
    ):
        maintenance.check_limit(1 * MIB)
    maintenance.check_limit(2**40)
