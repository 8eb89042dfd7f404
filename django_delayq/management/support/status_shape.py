"""The documented shape of `delayq status --json`."""

from typing import Any

from django_delayq.brokers.base import ExecutorInfo, RunInfo, WorkerInfo
from django_delayq.core.figures import Figures, Times
from django_delayq.management.support.shapes import pause_shape
from django_delayq.management.support.times import instant
from django_delayq.monitor import Hour, Status, Throughput, WaitingSet


def status_shape(seen: Status) -> dict[str, Any]:
    """Return all figures of an alias in the documented JSON shape."""
    return {
        **instant("now", seen.now_ms),
        "server": {
            "server": seen.server.server,
            "durability": seen.server.durability,
            "warnings": seen.server.warnings,
            "problems": seen.server.problems,
        },
        "broker_away": seen.broker_away,
        "states": {"pending": seen.pending, "ready": seen.ready, "running": seen.running, "error": seen.error},
        "capped": seen.capped,
        "in_part": sorted(seen.in_part),
        "suspects": seen.suspects,
        "retried": seen.retried,
        "errors_last_hour": seen.errors_last_hour,
        "totals": dict(seen.totals),
        **instant("next_due", seen.next_due_ms),
        "lag_ms": seen.lag_ms,
        "clock_skew_ms": seen.clock_skew_ms,
        "broker_skew_ms": seen.broker_skew_ms,
        "last_hour": _throughput_shape(seen.last_hour),
        "last_day": _throughput_shape(seen.last_day),
        "last_day_by_key": [
            {"queue": queue, "key": key, **_figures_shape(each)} for (queue, key), each in sorted(seen.by_pair.items())
        ],
        "forecast": [_hour_shape(each) for each in seen.forecast],
        "untimed": list(seen.untimed),
        "waiting": [_waiting_shape(each) for each in seen.waiting],
        "pauses": [pause_shape(each) for each in seen.pauses],
        "workers": [_worker_shape(each) for each in seen.workers],
    }


def _throughput_shape(throughput: Throughput | None) -> dict[str, Any] | None:
    if throughput is None:
        return None
    rates = {"per_s": round(throughput.per_s, 3), "busiest_per_s": round(throughput.busiest_per_s, 3)}
    return rates | _figures_shape(throughput.figures)


def _figures_shape(figures: Figures) -> dict[str, Any]:
    names = ("attempts", "finished", "failed", "retried", "snoozed", "buried")
    return {
        **{name: getattr(figures, name) for name in names},
        "lateness_ms": _times_shape(figures.lateness),
        "run_ms": _times_shape(figures.run_times),
    }


def _times_shape(times: Times) -> dict[str, int] | None:
    found = times.quantiles
    return None if found is None else {"p50": found.p50, "p95": found.p95, "p99": found.p99}


def _hour_shape(hour: Hour) -> dict[str, Any]:
    return {
        **instant("starts", hour.starts_ms),
        "due": hour.due,
        "complete": hour.complete,
        "drain_ms": hour.drain.ms,
        "drain_at_least": hour.drain.at_least,
        "unserved": hour.drain.unserved,
    }


def _waiting_shape(each: WaitingSet) -> dict[str, Any]:
    return {
        "queue": each.queue,
        "key": each.key,
        "pending": each.pending,
        "ready": each.ready,
        "pending_capped": each.pending_capped,
        "ready_capped": each.ready_capped,
        **instant("next_due", each.next_due_ms),
        "lag_ms": each.lag_ms,
        "parked": each.parked,
        "paused": each.paused,
    }


def _worker_shape(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "name": worker.name,
        "queues": worker.queues,
        "keys": worker.keys,
        "running": worker.running,
        "executors": [_executor_shape(each) for each in worker.executors],
        "runs": [_run_shape(each) for each in worker.runs],
        **instant("started", worker.started_ms),
        **instant("seen", worker.seen_ms),
    }


def _executor_shape(executor: ExecutorInfo) -> dict[str, Any]:
    return {"most": executor.most, "keys": executor.keys}


def _run_shape(run: RunInfo) -> dict[str, Any]:
    return {"id": run.id, "queue": run.queue, "key": run.key, **instant("started", run.started_ms)}
