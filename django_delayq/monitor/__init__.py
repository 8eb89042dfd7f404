"""Read-only figures about one alias: the one source for the admin, the commands and the metrics."""

from django_delayq.monitor.explain import Explanation, explain
from django_delayq.monitor.status import Status, WaitingSet, status

__all__ = ["Explanation", "Status", "WaitingSet", "explain", "status"]
