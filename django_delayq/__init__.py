"""Delayed messages for Django: never early, never lost, never held by two workers at once, and on time.

This is the public API, together with `django_delayq.signals` and `django_delayq.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django_delayq.api.bulk import asend_delay_messages, send_delay_messages
from django_delayq.api.handlers import Handler, delay_execute
from django_delayq.api.listing import alist_delay_messages, list_delay_messages
from django_delayq.api.operations import (
    Undone,
    acancel_delay_messages,
    aget_delay_message,
    areschedule_delay_messages,
    cancel_delay_messages,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_messages_again,
    undo_delay_action,
)
from django_delayq.api.send import asend_delay_message, send_delay_message
from django_delayq.core.batches import BatchDone
from django_delayq.core.errors import (
    BrokerRefused,
    BrokerUnavailable,
    Bury,
    Cancelled,
    DataMismatch,
    DelayqError,
    DuplicateMessage,
    HandlerTimeout,
    LeaseLost,
    Retry,
    SendError,
    Snooze,
    UnknownKey,
    Unsupported,
)
from django_delayq.core.human_time import At, Window
from django_delayq.core.message import IdScope, Message, MessageInfo, OnConflict, Send, Sent, SentMany, State
from django_delayq.core.recurrence import Cron, Every, RRule
from django_delayq.core.retry import Backoff, Exponential
from django_delayq.support.units import Duration

if TYPE_CHECKING:
    from django_delayq.api.batches import Batch
    from django_delayq.api.schedules import (
        ScheduleInfo,
        backfill_delay_schedule,
        get_delay_schedule,
        list_delay_schedules,
        pause_delay_schedules,
        resume_delay_schedules,
        run_delay_schedule,
        schedule_delay_message,
        sync_delay_schedules,
        unschedule_delay_messages,
    )
    from django_delayq.api.sequences import Sequence, SequenceInfo, Start, Step, stop_delay_sequences

_MODULES = {
    "Batch": "batches",
    "Sequence": "sequences",
    "SequenceInfo": "sequences",
    "Start": "sequences",
    "Step": "sequences",
    "stop_delay_sequences": "sequences",
}

__all__ = [
    "At",
    "Backoff",
    "Batch",
    "BatchDone",
    "BrokerRefused",
    "BrokerUnavailable",
    "Bury",
    "Cancelled",
    "Cron",
    "DataMismatch",
    "DelayqError",
    "DuplicateMessage",
    "Duration",
    "Every",
    "Exponential",
    "Handler",
    "HandlerTimeout",
    "IdScope",
    "LeaseLost",
    "Message",
    "MessageInfo",
    "OnConflict",
    "RRule",
    "Retry",
    "ScheduleInfo",
    "Send",
    "SendError",
    "Sent",
    "SentMany",
    "Sequence",
    "SequenceInfo",
    "Snooze",
    "Start",
    "State",
    "Step",
    "Undone",
    "UnknownKey",
    "Unsupported",
    "Window",
    "acancel_delay_messages",
    "aget_delay_message",
    "alist_delay_messages",
    "areschedule_delay_messages",
    "asend_delay_message",
    "asend_delay_messages",
    "backfill_delay_schedule",
    "cancel_delay_messages",
    "delay_execute",
    "get_delay_message",
    "get_delay_schedule",
    "list_delay_messages",
    "list_delay_schedules",
    "pause_delay_schedules",
    "reschedule_delay_messages",
    "resume_delay_schedules",
    "run_delay_schedule",
    "schedule_delay_message",
    "send_delay_message",
    "send_delay_messages",
    "send_delay_messages_again",
    "stop_delay_sequences",
    "sync_delay_schedules",
    "undo_delay_action",
    "unschedule_delay_messages",
]


def __getattr__(name: str) -> Any:
    """Import what needs the models when it is first asked for, because Django loads them later."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"django_delayq.api.{_MODULES.get(name, 'schedules')}"), name)
