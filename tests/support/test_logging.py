"""The logger of all that the package tells: it never raises, and its lines are the caller's."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from django_delayq.support.logging import logger


class Raising(logging.Filter):
    """A site's logging filter with a bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise ZeroDivisionError("of\nthe filter")


@pytest.fixture
def raising_filter() -> Iterator[None]:
    broken = Raising()
    logger.logger.addFilter(broken)
    yield
    logger.logger.removeFilter(broken)


@pytest.mark.usefixtures("raising_filter")
def test_a_filter_that_raises_costs_a_line_and_says_so_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    logger.error("a line")
    assert capsys.readouterr().err == (
        "A log line is lost, because a logging filter raised ZeroDivisionError: of\\nthe filter\n"
    )


@pytest.mark.usefixtures("raising_filter")
def test_a_site_that_silences_logging_itself_is_told_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.error("a line")
    assert capsys.readouterr().err == ""


def test_a_line_names_who_logged_it_and_keeps_its_extra(caplog: pytest.LogCaptureFixture) -> None:
    logger.error("a line", extra={"id": "a"})
    (record,) = caplog.records
    assert (Path(record.pathname), record.__dict__["id"]) == (Path(__file__), "a")


def test_a_traceback_forges_no_line_and_is_of_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("boom\nforged line\r\x85forged line password=hunter2" + "x" * 5_000_000)
    except ValueError:
        logger.exception("It failed.")
    (record,) = caplog.records
    first, *rest = caplog.handler.format(record).split("\n")
    assert first.endswith("It failed.")
    assert any("forged line" in line for line in rest)
    assert all(line.startswith("    ") for line in rest)
    assert "hunter2" not in caplog.text
    assert len(caplog.text) < 20_000
    assert record.exc_info is not None  # what groups errors goes by it


@pytest.mark.parametrize("named", ["postgres_database", "mariadb_database"])
def test_of_a_database_error_no_value_is_logged(
    named: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    using = request.getfixturevalue(named)
    name = "hunter2"  # the line of source that makes it twice stands in the traceback
    Group.objects.using(using).create(name=name)
    try:
        with transaction.atomic(using):
            Group.objects.using(using).create(name=name)
    except IntegrityError as error:
        try:
            raise LookupError("It is there.") from error
        except LookupError:
            logger.exception("It failed.")
    assert "uplicate" in caplog.text
    assert "hunter2" not in caplog.text
    assert "DETAIL" not in caplog.text
