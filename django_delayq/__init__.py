"""Delayed messages for Django: never early, never lost, never held twice, and on time. All that is public is here."""

from django_delayq.errors import (
    BrokerRefused,
    BrokerUnavailable,
    Bury,
    DelayqError,
    DuplicateMessage,
    LeaseLost,
    Retry,
    SendError,
    Snooze,
    UnknownKey,
    Unsupported,
)
from django_delayq.handlers import Handler, delay_execute
from django_delayq.message import Message
from django_delayq.retry import Exponential
from django_delayq.sends import MessageInfo, Send, Sent, SentMany

__all__ = [
    "BrokerRefused",
    "BrokerUnavailable",
    "Bury",
    "DelayqError",
    "DuplicateMessage",
    "Exponential",
    "Handler",
    "LeaseLost",
    "Message",
    "MessageInfo",
    "Retry",
    "Send",
    "SendError",
    "Sent",
    "SentMany",
    "Snooze",
    "UnknownKey",
    "Unsupported",
    "delay_execute",
]
