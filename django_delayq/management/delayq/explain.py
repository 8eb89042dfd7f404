"""`delayq explain`: describe one message in plain words."""

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_delayq.api.schedules import get_delay_schedule
from django_delayq.api.sequences import SequenceInfo
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import AlarmInfo
from django_delayq.conf import get_alias
from django_delayq.core.history import PastAttempt
from django_delayq.core.lanes import split_lane
from django_delayq.core.message import State, progress_words
from django_delayq.management.support.arguments import Options, add_json, checked
from django_delayq.management.support.schedules import schedule_shape
from django_delayq.management.support.shapes import data_text, instant, message_shape, pause_shape, write_json
from django_delayq.management.support.terminal import Write, counted, end_words, to_iso, to_words
from django_delayq.monitor import Explanation, explain, why_nowhere
from django_delayq.store import tags
from django_delayq.store.queries import MOST_ROWS, MessageFacts
from django_delayq.support.timestamps import from_ms, to_epoch_ms
from django_delayq.support.units import to_text
from django_delayq.support.validation import check_name

HELP = "Where a message is, when it is due, its attempts, who holds it until when, and what happens next."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments for the id and `--json`."""
    parser.add_argument("id", type=checked(partial(check_name, kind="id")), metavar="ID", help="The id of the message.")
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Explain the message. Raises `CommandError` if there is none with this id."""
    explanation = explain(options["id"], options["using"])
    if explanation is None:
        raise CommandError(_nowhere(options["id"], options["using"]))
    if explanation.facts and (store := get_backend(options["using"]).store):
        tags.add_to(store.database, [(int(explanation.facts.pk), explanation.info.header)])
    if options["json"]:
        write_json(write, _shape(explanation))
        return
    for line in _lines(explanation):
        write(line)


def _nowhere(id: str, using: str) -> str:
    if why := why_nowhere(id, using):
        return f"No table has a message {id!r}. {why}"
    if get_alias(using).store is not None:
        if get_delay_schedule(id, using=using) is not None:
            return f"{id!r} is a schedule, not a message: `delayq schedules {id}` shows it, and its next messages."
        return f"No table has a message {id!r}: it was pruned or purged, or never sent to {using!r}."
    return (
        f"No message waits, runs or has failed under {id!r}. It may have finished, been cancelled or purged, or never "
        f"been sent to {using!r}. Where someone else removed it, `delayq audit` tells."
    )


def _lines(explanation: Explanation) -> Iterator[str]:
    info, now_ms = explanation.info, explanation.now_ms
    paused = info.state in (State.PENDING, State.READY) and explanation.pauses
    marks = [("parked", explanation.parked), ("paused", paused)]
    yield ", ".join([f"{info.id}: {info.state}", *(mark for mark, holds in marks if holds)])
    queue, priority = split_lane(info.header.queue)
    yield f"for: key {info.header.key!r} in queue {queue!r}" + (f", priority {priority}" if priority else "")
    for tag in info.header.tags:
        yield f"tag: {tag!r}"
    if info.header.trace_id:
        yield f"trace id: {info.header.trace_id!r}"
    yield f"sent: {to_words(info.header.sent_ms, now_ms)}"
    yield from _due(explanation)
    for pause in explanation.pauses:
        yield f"{pause.names} is paused {end_words(pause.until_ms, now_ms)}: {pause.reason}"
    yield from _failures(explanation)
    yield from _sends(explanation)
    yield from _run_or_end(explanation)
    if info.header.share is not None:
        yield f"share: {info.header.share!r}"
    if info.header.version is not None:
        yield f"version of the data: {info.header.version}"
    yield f"data: {data_text(info.body)}"
    yield from facts_lines(explanation)
    yield f"next: {explanation.happens_next}"
    of_others = {
        "schedule": explanation.schedule_words,
        "sequence": explanation.sequence_words,
        "batch": explanation.batch_words,
    }
    yield from (f"{name}: {words}" for name, words in of_others.items() if words)
    if explanation.facts is None:
        for line in info.detail.splitlines():
            yield f"    {line}"


def _run_or_end(explanation: Explanation) -> Iterator[str]:
    info, now_ms = explanation.info, explanation.now_ms
    yield from _run(explanation)
    if info.buried_ms is not None:
        yield f"failed: {to_words(info.buried_ms, now_ms)}"


def _run(explanation: Explanation) -> Iterator[str]:
    info, now_ms = explanation.info, explanation.now_ms
    if info.lease_end_ms is not None:
        yield f"held by: {info.holder or 'unknown'}, lease ends {to_words(info.lease_end_ms, now_ms)}"
    if info.progress:
        yield f"progress: {progress_words(info.progress)}"
    if info.cancel_request is not None:
        by, at_ms = info.cancel_request
        yield f"asked to cancel: {to_words(at_ms, now_ms)}" + (f", by {by}" if by else "")


def _due(explanation: Explanation) -> Iterator[str]:
    info, now_ms = explanation.info, explanation.now_ms
    is_over = info.state in (State.FINISHED, State.CANCELLED)
    yield f"was due: {to_iso(info.due_ms)}" if is_over else f"due: {to_words(info.due_ms, now_ms)}"
    if info.header.scheduled_ms < info.due_ms and not is_over:
        yield f"first due: {to_words(info.header.scheduled_ms, now_ms)}"
    for number, line in enumerate(explanation.rule):
        yield f"    {line}" if number else f"rule: {line}"
    if info.header.expires_at_ms is not None and not is_over:
        yield f"expires: {to_words(info.header.expires_at_ms, now_ms)}"


def _sends(explanation: Explanation) -> Iterator[str]:
    info = explanation.info
    if info.merged:
        yield f"merged: {counted(info.merged, 'send')} took the place of the one before"
    if info.again_ms is not None:
        yield f"runs again: a send is kept until this run ends, due {to_words(info.again_ms, explanation.now_ms)}"


def _failures(explanation: Explanation) -> Iterator[str]:
    info = explanation.info
    yield f"failures: {info.failures}{_most(explanation)}, deaths of its worker: {info.crashes}"
    if info.error:
        yield f"last error: {info.error}"


def _most(explanation: Explanation) -> str:
    most = explanation.max_attempts
    return "" if most is None else f" of at most {counted(most, 'attempt')}"


def _shape(explanation: Explanation) -> dict[str, object]:
    """Return the documented JSON shape: a message, and what happens to it next."""
    schedule = explanation.schedule
    return {
        **message_shape(explanation.info),
        **instant("now", explanation.now_ms),
        "parked": explanation.parked,
        "pauses": [pause_shape(pause) for pause in explanation.pauses],
        "max_attempts": explanation.max_attempts,
        "happens_next": explanation.happens_next,
        "schedule": None if schedule is None else schedule_shape(schedule, from_ms(explanation.now_ms)),
        "sequence": None if explanation.sequence is None else sequence_shape(explanation.sequence),
        "batch": None if explanation.batch is None else asdict(explanation.batch),
        "facts": facts_shape(explanation),
    }


def sequence_shape(info: SequenceInfo) -> dict[str, object]:
    """Return the documented JSON shape of a sequence under way."""
    return {
        "name": info.name,
        "id": info.id,
        "keys": list(info.keys),
        "step": info.step,
        "message_id": info.message_id,
        **instant("started", to_epoch_ms(info.started_at)),
        **instant("stopped", None if info.stopped_at is None else to_epoch_ms(info.stopped_at)),
    }


def facts_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the facts that only a store has, as lines for people; none without a store."""
    facts, now_ms = explanation.facts, explanation.now_ms
    if facts is None:
        return
    if facts.running_since_ms is not None:
        yield f"runs since: {to_words(facts.running_since_ms, now_ms)}"
    if facts.ended_ms is not None and facts.info.buried_ms is None:
        yield f"ended: {to_words(facts.ended_ms, now_ms)}"
    if facts.fingerprint:
        yield f"fingerprint: {facts.fingerprint}"
    yield f"row: {facts.pk}, {_rows(facts)}"
    yield f"alarm: {_alarm(facts, explanation, now_ms)}"
    yield f"attempts: {len(facts.attempts) or 'none is over'}"
    for attempt in facts.attempts:
        yield from _attempt_lines(attempt, now_ms)


def facts_shape(explanation: Explanation) -> dict[str, Any] | None:
    """Return the facts that only a store has, in the documented JSON shape; None without a store."""
    facts = explanation.facts
    if facts is None:
        return None
    return {
        "pk": facts.pk,
        "rows": facts.rows,
        **instant("running_since", facts.running_since_ms),
        **instant("ended", facts.ended_ms),
        "fingerprint": facts.fingerprint,
        "alarms": None if explanation.alarms is None else [_alarm_shape(alarm) for alarm in explanation.alarms],
        "attempts": [_attempt_shape(attempt) for attempt in facts.attempts],
        "rule": list(explanation.rule),
    }


def _rows(facts: MessageFacts) -> str:
    if facts.rows <= 1:
        return "the only one of this id"
    return f"the newest of {facts.rows}{' or more' if facts.rows == MOST_ROWS else ''} of this id"


def _alarm(facts: MessageFacts, explanation: Explanation, now_ms: int) -> str:
    if explanation.alarms is None:
        return explanation.why_no_alarms
    for alarm in explanation.alarms:
        if alarm.lease_end_ms is not None:
            return f"claimed, it rings again {to_words(alarm.lease_end_ms, now_ms)} unless it is dropped"
        return f"rings {to_words(alarm.due_ms, now_ms)}"
    if facts.info.state in (State.PENDING, State.READY):
        return "none; it gets one some seconds before it is due, and none if it is overdue"
    return "none"


def _attempt_lines(attempt: PastAttempt, now_ms: int) -> Iterator[str]:
    took = "never started" if attempt.started is None else f"took {to_text(max(attempt.ended - attempt.started, 0))}"
    error = f": {attempt.error}" if attempt.error else ""
    worker = attempt.worker or "no worker"
    yield f"  {attempt.attempt} {attempt.outcome} {to_words(attempt.ended, now_ms)}, {took}, {worker}{error}"
    for line in attempt.traceback.splitlines():
        yield f"    {line}"


def _alarm_shape(alarm: AlarmInfo) -> dict[str, Any]:
    return {**instant("due", alarm.due_ms), **instant("lease_end", alarm.lease_end_ms)}


def _attempt_shape(attempt: PastAttempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "outcome": str(attempt.outcome),
        **instant("started", attempt.started),
        **instant("ended", attempt.ended),
        "worker": attempt.worker,
        "error": attempt.error,
        "traceback": attempt.traceback,
    }
