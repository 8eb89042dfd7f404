"""Explain where one message is, what happened to it, and what happens next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _, ngettext

from django_delayq.api.handlers import Handler, get_handler, later_version
from django_delayq.api.registry import WHERE_HANDLERS_ARE
from django_delayq.api.schedules import ScheduleInfo, get_delay_schedule
from django_delayq.api.sequences import SequenceInfo, sequence_info
from django_delayq.brokers import get_backend
from django_delayq.brokers.base import AlarmInfo, Backend, Info, Pause, Tables, WorkerInfo, covering, is_asked_for
from django_delayq.conf import DEFAULT_ALIAS, Alias
from django_delayq.core import rules
from django_delayq.core.errors import DelayqError
from django_delayq.core.lanes import queue_of
from django_delayq.core.limits import Limits
from django_delayq.core.message import State
from django_delayq.core.occurrences import occurrence_of, schedule_of
from django_delayq.core.steps import step_of
from django_delayq.core.transitions import SUSPECT_CRASHES, max_attempts
from django_delayq.monitor import batches
from django_delayq.monitor.batches import BatchInfo
from django_delayq.monitor.schedules import in_words, why_never_put
from django_delayq.monitor.sequences import in_words as in_words_of_step, stop_in_words, when_it_comes
from django_delayq.store import sequences
from django_delayq.store.queries import MessageFacts, message_facts
from django_delayq.support.timestamps import EPOCH, from_ms
from django_delayq.support.units import to_text
from django_delayq.translation import translated


@dataclass(frozen=True, slots=True)
class Explanation:
    """One message at `now_ms`, by the authoritative clock.

    `happens_next` is in the active language. `parked` says that the message waits and no live worker asks for its queue
    and key. `pauses` has the pauses of its queue and key. `max_attempts` is None if neither the message nor a handler
    known here sets it. `facts` has the facts that only a store has. `alarms` has the alarms that the broker holds for
    the row; it is None without a store, and if they can't be listed. Only in that second case does `why_no_alarms`
    count: it gives the reason in English. `rule` has the steps of the rule that gave the message its due time, in
    English; it is empty if there was none, or no store to keep it. `schedule` is
    the schedule that the message is an occurrence of, and `schedule_words` says in the active language what that is,
    and what follows. `sequence` and `sequence_words` say the same of the sequence under way that the message is a step
    of; if a stop of the sequence has cancelled it, `sequence` is None, and the words say so. `batch` and `batch_words`
    say it of the batch that it is a member of; `batch` is None if that is done.
    """

    info: Info
    now_ms: int
    parked: bool
    pauses: tuple[Pause, ...]
    max_attempts: int | None
    happens_next: str
    facts: MessageFacts | None = None
    alarms: tuple[AlarmInfo, ...] | None = None
    why_no_alarms: str = ""
    rule: tuple[str, ...] = ()
    schedule: ScheduleInfo | None = None
    schedule_words: str = ""
    sequence: SequenceInfo | None = None
    sequence_words: str = ""
    batch: BatchInfo | None = None
    batch_words: str = ""


def explain(id: str, using: str = DEFAULT_ALIAS) -> Explanation | None:
    """Explain the message that waits or runs under `id`, or else the one buried last. This changes nothing.

    With a store, finished and cancelled messages count too: if none waits or runs, explain the one that ended last.
    Return None if there is no message.
    """
    backend = get_backend(using)
    if backend.store is not None:
        return _explain_row(backend, backend.store, id, using)
    info = backend.queue.get(id)
    if info is None:
        return None
    return _explanation(backend, info, backend.queue.counts().now_ms, backend.presence.workers(), using)


def _explain_row(backend: Backend, store: Tables, id: str, using: str) -> Explanation | None:
    facts = message_facts(store.database, id)
    if facts is None:
        return None
    explanation, name, occurrence = _explain_facts(backend, store, facts, using), schedule_of(id), occurrence_of(id)
    if step_of(id) is not None:
        return _with_sequence(explanation, store, facts)
    batch, batch_words = batches.of_member(store.database, id)
    if batch_words:
        return replace(explanation, batch=batch, batch_words=batch_words)
    if name is None or (schedule := get_delay_schedule(name, using=using)) is None:
        return explanation
    words = in_words(schedule, occurrence[1] if occurrence else EPOCH, from_ms(facts.now_ms))
    return replace(explanation, schedule=schedule, schedule_words=words)


def _with_sequence(explanation: Explanation, store: Tables, facts: MessageFacts) -> Explanation:
    """Add the sequence under way that has come to a message, if there is one, or the stop that cancelled it."""
    info = facts.info
    if info.state is State.CANCELLED:
        return replace(explanation, sequence_words=stop_in_words(info.id, info.error))
    row = sequences.of_message(store.database, info.id)
    if row is None or info.state is State.FINISHED:
        return explanation
    words = in_words_of_step(row, _ends_at(facts))
    return replace(explanation, sequence=sequence_info(row), sequence_words=words)


def _ends_at(facts: MessageFacts) -> datetime | None:
    """Return when a message ends at the earliest; None if it has failed."""
    return None if facts.info.state is State.FAILED else from_ms(max(facts.info.due_ms, facts.now_ms))


def why_nowhere(id: str, using: str) -> str:
    """Return in the active language why there is no message with this id of a schedule, a sequence or a batch.

    Return "" if it is of none of these.
    """
    store, occurrence, step = get_backend(using).store, occurrence_of(id), step_of(id)
    if store is None:
        return ""
    if occurrence is not None and (info := get_delay_schedule(occurrence[0], using=using)) is not None:
        return why_never_put(info, occurrence[1], from_ms(store.database.now_ms()))
    if step is not None and (row := sequences.find(store.database, step.name, step.id)) is not None:
        facts = message_facts(store.database, row.message_id)
        return "" if facts is None else when_it_comes(row, step.number, _ends_at(facts))
    batch = batches.find(store.database, id)
    return "" if batch is None else batches.in_words(batch)


def _explain_facts(backend: Backend, store: Tables, facts: MessageFacts, using: str) -> Explanation:
    header = facts.info.header
    rule: tuple[str, ...] = ()
    if facts.rule:
        is_due_by_it = rules.is_due_by(facts.rule_due_ms, facts.info.due_ms, header.sent_ms)
        rule = tuple(rules.in_words(facts.rule, facts.info.id, is_due_by_it=is_due_by_it))
    alarms, why = None, _why_no_alarms(store, backend.alias)
    try:
        if store.broker.alarm_index is not None:
            alarms = tuple(store.broker.alarm_index.find_alarms(header.queue, header.key, [facts.pk]))
        workers = backend.presence.workers()
    except DelayqError:  # the row is known without the broker; the workers that ask for its key are not
        explanation = _explanation(backend, facts.info, facts.now_ms, None, using)
        return replace(explanation, facts=facts, why_no_alarms=why, rule=rule)
    explanation = _explanation(backend, facts.info, facts.now_ms, workers, using)
    return replace(explanation, facts=facts, alarms=alarms, why_no_alarms=why, rule=rule)


def _why_no_alarms(store: Tables, alias: Alias) -> str:
    """Return the reason to show if the alarms of a row could not be listed."""
    if store.broker.alarm_index is not None:
        return "not known, the broker is away"
    if store.broker.window is None:
        return "none is kept: the row is its own alarm"
    return f"not known, {alias.broker_name.removesuffix('Broker')} can't be asked for it"


def _explanation(
    backend: Backend, info: Info, now_ms: int, workers: Sequence[WorkerInfo] | None, using: str
) -> Explanation:
    waits = info.state in (State.PENDING, State.READY)
    parked = waits and workers is not None and not is_asked_for(info.header.queue, info.header.key, workers)
    pauses = tuple(covering(backend.presence.pauses(), info.header.queue, info.header.key))
    is_row = backend.store is not None
    handler = get_handler(using, info.header.key)
    happens_next = _happens_next(info, now_ms, parked, is_row)
    if handler is not None:
        happens_next = " ".join([*_before(info, handler), happens_next, *_unless(info, handler, parked=parked)])
    elif parked:
        happens_next += f" {translated(WHERE_HANDLERS_ARE)}"
    happens_next = _unless_paused(info, pauses, happens_next)
    most = max_attempts(info.header, handler)
    return Explanation(info, now_ms, parked, pauses, most, happens_next)


def _before(info: Info, handler: Handler[Any, Any]) -> Iterator[str]:
    """Yield the sentence on what a leased message may wait for before its handler runs."""
    if info.state is State.RUNNING:
        yield from _with_others(info, handler)


def _unless(info: Info, handler: Handler[Any, Any], *, parked: bool) -> Iterator[str]:
    """Yield sentences on what may keep a message that waits from starting when it is due, or from running alone."""
    if info.state not in (State.PENDING, State.READY):
        return
    if not parked:
        yield from _with_others(info, handler)
    if (info.header.version or 1) > handler.version:
        yield _later(info.header.version or 1, handler.version)
    if handler.limits is not None and not parked:
        yield _unless_limited(handler.limits)
    if handler.shares is not None and not parked:
        yield _("Among what is due, the shares of %(key)s take turns.") % {"key": repr(handler.shares.share_key)}


def _later(version: int, own: int) -> str:
    return _("Workers with this code leave it to others: %(why)s.") % {"why": translated(later_version(version, own))}


def _unless_paused(info: Info, pauses: Sequence[Pause], happens_next: str) -> str:
    if not pauses or info.state in (State.FAILED, State.FINISHED, State.CANCELLED):
        return happens_next
    what = _(" and ").join(translated(pause.names) for pause in pauses)
    if info.state is State.RUNNING:
        again = ngettext(
            "It does not start again while %(what)s is paused.",
            "It does not start again while %(what)s are paused.",
            len(pauses),
        )
        return f"{happens_next} {again % {'what': what}}"
    after = ngettext(
        "It does not start while %(what)s is paused. After that: %(then)s",
        "It does not start while %(what)s are paused. After that: %(then)s",
        len(pauses),
    )
    return after % {"what": what, "then": happens_next}


def _unless_limited(limits: Limits) -> str:
    """Return what the limits of a handler allow. The values of keys are left out, because they are from the data."""
    allowed = []
    if limits.max_concurrency is not None:
        text = _("%(most)s running at once") % {"most": limits.max_concurrency}
        allowed.append(_for_each(text, limits.concurrency_key))
    if limits.interval_us is not None:
        every = {"burst": limits.burst, "interval": _interval_text(limits.interval_us)}
        text = _("one start every %(interval)s")
        if limits.burst > 1:
            text = _("%(burst)s starts, and then one every %(interval)s")
        allowed.append(_for_each(text % every, limits.rate_key))
    return _("While a limit over all workers is reached it is due later: %(limits)s.") % {"limits": "; ".join(allowed)}


def _for_each(text: str, key: str | None) -> str:
    return text if key is None else _("%(limit)s for each %(key)s") % {"limit": text, "key": repr(key)}


def _interval_text(interval_us: int) -> str:
    return to_text(interval_us / 1000) if interval_us >= 1000 else f"{interval_us}µs"


def _happens_next(info: Info, now_ms: int, parked: bool, is_row: bool) -> str:
    match info.state:
        case State.PENDING:
            return _when_due(info, parked)
        case State.READY:
            return _when_claimed(info, now_ms, parked)
        case State.RUNNING:
            return _when_run(info, now_ms)
        case State.FINISHED | State.CANCELLED:
            return _("Nothing: it is over.")
        case _:
            if is_row:
                return _("Nothing until it is rescued, purged, or pruned: delayq prune --errors-before.")
            return _("Nothing until it is rescued or purged; it is dropped when error_retention ends.")


def _when_due(info: Info, parked: bool) -> str:
    if parked:
        return _("When it is due it stays parked until a worker comes that asks for %(set)s: no live worker does.") % {
            "set": _set(info)
        }
    return _("When it is due the first worker with a free slot runs it.")


def _when_claimed(info: Info, now_ms: int, parked: bool) -> str:
    if parked:
        return _("It is parked until a worker comes that asks for %(set)s: no live worker does.") % {"set": _set(info)}
    expires_at_ms = info.header.expires_at_ms
    if expires_at_ms is not None and expires_at_ms <= now_ms:
        return _("It has expired: it fails when a worker claims it.")
    if info.suspect:
        return _("Workers died while they ran it: it runs alone in a process of its own, and fails at one more death.")
    return _("The first worker with a free slot runs it.")


def _when_run(info: Info, now_ms: int) -> str:
    lapse = _when_lapsed(info)
    if info.lease_end_ms is not None and info.lease_end_ms <= now_ms:
        return _("Its lease has run out, so at the next maintenance %(lapse)s.") % {"lapse": lapse}
    if info.cancel_request is not None:
        return _("It is cancelled when its handler stops, or when its lease ends. If it returns first, it is finished.")
    ends = _("It ends as its handler does: finished, retried or failed.")
    dies = _("If its worker dies, at the end of its lease %(lapse)s.")  # not in an f-string: no catalogue would have it
    return f"{ends} {dies % {'lapse': lapse}}"


def _with_others(info: Info, handler: Handler[Any, Any]) -> Iterator[str]:
    """Yield the sentence on the messages with which a message runs; none if it runs by itself, as a suspect does."""
    if handler.batch is None or info.crashes >= SUSPECT_CRASHES:
        return
    if not handler.wait_ms:
        yield _("It runs together with others that are due, %(batch)s at most.") % {"batch": handler.batch}
        return
    yield _(
        "It runs together with others, %(batch)s at most. Until there are so many, it may wait in its worker for "
        "%(wait)s."
    ) % {"batch": handler.batch, "wait": to_text(handler.wait_ms)}


def _when_lapsed(info: Info) -> str:
    if info.cancel_request is not None:
        return _("it is cancelled, because somebody asked for that while it ran")
    if info.header.at_most_once:
        return _("it fails, because it may start only once")
    if info.crashes + 1 >= SUSPECT_CRASHES:
        return _("it is ready again, as a suspect that runs alone in a child process")
    return _("it is ready again")


def _set(info: Info) -> str:
    return _("key %(key)s in queue %(queue)s") % {
        "key": repr(info.header.key),
        "queue": repr(queue_of(info.header.queue)),
    }
