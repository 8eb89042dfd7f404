"""A schedule is typed in words, looked at, and saved."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from playwright.sync_api import Page, expect
from pytest_django import Settings

from django_delayq import Message, delay_execute
from django_delayq.models import ReadyMessage


def test_a_schedule_is_typed_in_words_seen_and_saved(
    page: Page, database: str, settings: Settings, registry: None, faults: list[str]
) -> None:
    @delay_execute("report")
    def report(message: Message[None]) -> None: ...

    settings.TIME_ZONE = "UTC"
    page.goto("/admin/delayq/schedule/add/")
    page.get_by_label("Name:").fill("reports")
    page.get_by_label("Rule:").fill("every weekday")
    page.get_by_label("Window:").fill("mon-sun 12:00-18:00")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Write the time of day too: every weekday at 9:00")).to_be_visible()
    page.get_by_label("Rule:").fill("every weekday at 9:00")
    page.get_by_label("Time zone:").fill("UTC")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("every week on mon-fri at 9:00 in UTC")).to_be_visible()
    rows = page.locator(".delayq-upcoming tbody tr").all_inner_texts()
    assert len(rows) == 10
    days = [datetime.fromisoformat(row.split()[1]) for row in rows]
    assert {day.weekday() for day in days} == set(range(5))
    assert [later - day for day, later in pairwise(days)].count(timedelta(days=3)) in (1, 2)  # weekends
    assert all("09:00:00" in row and "12:00" in row for row in rows)  # the occurrence, and when it is due
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The schedule was saved.")).to_be_visible()
    page.get_by_role("link", name="schedules", exact=False).last.click()
    listed = page.get_by_role("row", name="reports")
    expect(listed).to_contain_text("every week on mon-fri at 9:00 in UTC")
    due_at = ReadyMessage.objects.using(database).get().due_at.astimezone(UTC)
    assert due_at.hour == 12
    expect(listed.locator(f'time[datetime^="{due_at:%Y-%m-%dT%H:%M}"]')).to_be_visible()
    assert faults == []
