"""`delayq status`: show the figures of one alias for people, or with more detail as the documented JSON."""

from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from django_delayq.brokers.base import Pause, RunInfo, WorkerInfo
from django_delayq.core.figures import Figures, Times
from django_delayq.management.support.arguments import Options, add_json
from django_delayq.management.support.shapes import instant, pause_shape, queue_shape, write_json
from django_delayq.management.support.terminal import Write, end_words, queue_words, to_words, write_table
from django_delayq.monitor import Hour, Status, Throughput, WaitingSet, status
from django_delayq.store.database import skew_in_words
from django_delayq.store.statistics import QUICK, ScheduleCounts
from django_delayq.support.timestamps import HOUR_MS, from_ms
from django_delayq.support.units import to_text

HELP = "Counts per state, queue and key, what is parked, what is paused, next due, lag, clock skew, live workers."


def add_arguments(parser: ArgumentParser) -> None:
    """Add `--json`."""
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Write the figures of the alias. Raises `CommandError` if its broker can't be used until somebody mends it."""
    seen = status(options["using"], bounds=QUICK)
    if options["json"]:
        write_json(write, {"alias": options["using"], **status_shape(seen)})
    else:
        _write_all(options["using"], seen, write)
    if seen.broker_away and not seen.server.is_away:  # it refuses, or bears another store's mark
        raise CommandError(f"{options['using']}: {seen.server.problems[0]}")


def _write_all(using: str, seen: Status, write: Write) -> None:
    write(f"{using}: {seen.server.server}")
    _write_summary(write, seen)
    _write_server(write, seen)
    _write_figures(write, seen)
    write("")
    write_table(
        write,
        ("QUEUE", "KEY", "PENDING", "READY", "LAG", "NEXT DUE", ""),
        [_waiting_row(each, seen.now_ms) for each in seen.waiting],
    )
    write("" if seen.waiting else "Nothing waits.")
    if seen.pauses:
        write_table(write, ("PAUSED", "SINCE", "", "REASON"), [_pause_row(each, seen.now_ms) for each in seen.pauses])
        write("")
    write_table(
        write,
        ("WORKER", "QUEUES", "KEYS", "RUNNING", "STARTED", "SEEN"),
        [_worker_row(each, seen.now_ms) for each in seen.workers],
    )


def _write_summary(write: Write, seen: Status) -> None:
    """Write what people ask first: whether a worker lives, what is late, and what has failed."""
    write(f"workers: {_workers_words(seen)}")
    write(f"due now: {_due_words(seen)}")
    write(f"failed: {_failed_words(seen)}")


def _workers_words(seen: Status) -> str:
    if seen.broker_away:
        return "not known while the broker is away"
    if not seen.workers:
        return "none is live; start one with `manage.py run_delayq`"
    return f"{len(seen.workers)} live, running {seen.running}"


def _due_words(seen: Status) -> str:
    if not seen.ready:
        return "nothing"
    words = [f"{seen.ready}{'+' * seen.ready_capped}", f"the first for {_lag_words(seen)}"]
    if parked := sum(each.ready for each in seen.parked):
        words.append(f"{parked} parked")
    if paused := sum(each.ready for each in seen.waiting if each.paused):
        words.append(f"{paused} paused")
    return ", ".join(words)


def _failed_words(seen: Status) -> str:
    if not seen.error:
        return "none"
    recent = _counted(seen, "errors_last_hour", seen.errors_last_hour)
    return f"{_counted(seen, 'error', seen.error)}, in the last hour {recent}; `manage.py delayq errors` lists them"


def _write_server(write: Write, seen: Status) -> None:
    write(f"durability: {seen.server.durability}")
    for warning in seen.server.warnings:
        write(f"warning: {warning}")
    for problem in seen.server.problems:
        write(f"problem: {problem}")


def _write_figures(write: Write, seen: Status) -> None:
    counted = {"pending": seen.pending, "ready": seen.ready, "running": seen.running}  # what failed is told above
    write(_listed(counted) + (" (and more: large tables are counted in part)" if seen.capped else ""))
    if seen.retried is not None:
        write(f"retried, waiting or running again: {_counted(seen, 'retried', seen.retried)}")
    if seen.schedules and seen.schedules.schedules:
        write(f"schedules: {_schedules_words(seen, seen.schedules)}")
    if seen.totals:
        write(f"totals: {_listed(seen.totals)}")
    write(f"suspects: {seen.suspects}")
    write(f"parked keys: {len(seen.parked)}")
    write(f"next due: {to_words(seen.next_due_ms, seen.now_ms)}")
    write(f"lag: {_lag_words(seen)}")
    write(f"clock skew: {_skew_words(seen.clock_skew_ms, 'database' if seen.stored else 'broker')}")
    if seen.broker_skew_ms is not None:
        write(f"between the two clocks: {skew_in_words(seen.broker_skew_ms)}")
    for name, throughput in (("hour", seen.last_hour), ("day", seen.last_day)):
        if throughput is not None:
            write(f"last {name}: {_throughput_words(throughput)}")
    for hour in seen.forecast:
        if hour.due:
            write(f"due {_span_words(hour)}: {_hour_words(hour)}")
    if seen.untimed:
        write(f"how long these take is not known, none has run, or only in the last minute: {', '.join(seen.untimed)}")


def _schedules_words(seen: Status, counts: ScheduleCounts) -> str:
    words = {"paused": counts.paused, "in error": counts.error, "gone from the code": counts.gone}
    held_up = [f"{number} {word}" for word, number in words.items() if number]
    return ", ".join([_counted(seen, "schedules", counts.schedules), *held_up])


def _counted(seen: Status, name: str, number: int) -> str:
    return f"{number}+" if name in seen.in_part else str(number)


def _throughput_words(throughput: Throughput) -> str:
    finished = f"{throughput.finished} finished, {_rate_words(throughput.per_s)}"
    if throughput.lateness is None:
        return finished
    late = throughput.lateness
    return f"{finished}, lateness p50 {to_text(late.p50)}, p95 {to_text(late.p95)}, p99 {to_text(late.p99)}"


def _rate_words(per_s: float) -> str:
    return "under 0.01/s" if 0 < per_s < 0.01 else f"{per_s:.3g}/s"


def _span_words(hour: Hour) -> str:
    """Return from when until when the hour is, by the clock of UTC. The hours of a forecast span half a day."""
    ends_ms = hour.starts_ms - hour.starts_ms % HOUR_MS + HOUR_MS
    starts, ends = (from_ms(ms).strftime("%H:%M") for ms in (hour.starts_ms, ends_ms))
    return f"from {starts} to {ends} UTC"


def _hour_words(hour: Hour) -> str:
    due = str(hour.due) if hour.complete else f"{hour.due} or more"
    if hour.drain.ms is None:
        return f"{due}, no worker for them" if hour.drain.unserved else due
    return f"{due}, {'at least ' if hour.drain.at_least else ''}{to_text(hour.drain.ms)} to drain"


def _skew_words(skew_ms: int, decides: str) -> str:
    if skew_ms == 0:
        return "none"
    where = "ahead of" if skew_ms > 0 else "behind"
    return f"the {decides}'s clock is {to_text(abs(skew_ms))} {where} this machine's"


def _lag_words(each: Status | WaitingSet) -> str:
    return "not known" if each.ready and each.next_due_ms is None else to_text(each.lag_ms)


def _listed(figures: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {figure}" for name, figure in figures.items()) or "none"


def _waiting_row(each: WaitingSet, now_ms: int) -> tuple[str, ...]:
    return (
        queue_words(each.queue),
        each.key,
        f"{each.pending}{'+' * each.pending_capped}",
        f"{each.ready}{'+' * each.ready_capped}",
        _lag_words(each),
        to_words(each.next_due_ms, now_ms),
        ", ".join(word for word, applies in (("parked", each.parked), ("paused", each.paused)) if applies),
    )


def _pause_row(pause: Pause, now_ms: int) -> tuple[str, ...]:
    return (pause.names, to_words(pause.paused_ms, now_ms), end_words(pause.until_ms, now_ms), pause.reason)


def _worker_row(worker: WorkerInfo, now_ms: int) -> tuple[str, ...]:
    return (
        worker.name,
        ",".join(worker.queues),
        str(len(worker.keys)),
        str(worker.running),
        to_words(worker.started_ms, now_ms),
        to_words(worker.seen_ms, now_ms),
    )


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
            {**queue_shape(queue), "key": key, **_figures_shape(each)}
            for (queue, key), each in sorted(seen.by_pair.items())
        ],
        "forecast": [_hour_shape(each) for each in seen.forecast],
        "untimed": list(seen.untimed),
        "schedules": None if seen.schedules is None else seen.schedules._asdict(),
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
        **queue_shape(each.queue),
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
        "executors": [asdict(each) for each in worker.executors],
        "runs": [_run_shape(each) for each in worker.runs],
        **instant("started", worker.started_ms),
        **instant("seen", worker.seen_ms),
    }


def _run_shape(run: RunInfo) -> dict[str, Any]:
    return {"id": run.id, **queue_shape(run.queue), "key": run.key, **instant("started", run.started_ms)}
