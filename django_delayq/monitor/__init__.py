"""Offer read-only figures of one alias. The admin, the commands and the metrics take all of theirs from here."""

from django_delayq.monitor.explain import Explanation, explain, why_nowhere
from django_delayq.monitor.forecast import Drain, Hour, Need
from django_delayq.monitor.kept import kept_status
from django_delayq.monitor.status import Status, WaitingSet, now_ms, status
from django_delayq.monitor.storeless import Storeless, storeless
from django_delayq.monitor.throughput import Throughput, last_month, measure

__all__ = [
    "Drain",
    "Explanation",
    "Hour",
    "Need",
    "Status",
    "Storeless",
    "Throughput",
    "WaitingSet",
    "explain",
    "kept_status",
    "last_month",
    "measure",
    "now_ms",
    "status",
    "storeless",
    "why_nowhere",
]
