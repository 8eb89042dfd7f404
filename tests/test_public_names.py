"""What `django_delayq` itself exports: the public API, and nothing of Django needs to be set up for it."""

import subprocess
import sys

import django_delayq

API = {
    "delay_execute Handler Message Send Sent SentMany MessageInfo State Exponential Retry Snooze Bury Cancelled",
    "Duration Backoff OnConflict IdScope At Window",
    "send_delay_message send_delay_messages cancel_delay_messages reschedule_delay_messages get_delay_message",
    "send_delay_messages_again undo_delay_action Undone",
    "list_delay_messages alist_delay_messages",
    "asend_delay_message asend_delay_messages acancel_delay_messages areschedule_delay_messages aget_delay_message",
    "Every Cron RRule ScheduleInfo schedule_delay_message unschedule_delay_messages pause_delay_schedules",
    "resume_delay_schedules run_delay_schedule backfill_delay_schedule get_delay_schedule list_delay_schedules",
    "sync_delay_schedules",
    "Batch BatchDone Sequence Step Start SequenceInfo stop_delay_sequences",
    "DelayqError SendError DuplicateMessage UnknownKey BrokerUnavailable BrokerRefused Unsupported LeaseLost",
    "HandlerTimeout DataMismatch",
}


def test_the_public_names_are_those_of_the_docs() -> None:
    assert set(django_delayq.__all__) == {name for line in API for name in line.split()}
    assert all(hasattr(django_delayq, name) for name in django_delayq.__all__)


def test_it_can_be_imported_before_django_is_set_up() -> None:
    script = "import django_delayq\nfrom django.conf import settings\nassert not settings.configured"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)})
