"""`delayq explain`: describe one message in plain words."""

from argparse import ArgumentParser
from collections.abc import Iterator

from django.core.management.base import CommandError

from django_delayq.conf import get_alias
from django_delayq.core.message import State
from django_delayq.management.support.arguments import Options, add_json
from django_delayq.management.support.shapes import data_text, message_shape, pause_shape, write_json
from django_delayq.management.support.story import story_lines, story_shape
from django_delayq.management.support.terminal import Write, counted
from django_delayq.management.support.times import end_words, instant, to_words
from django_delayq.monitor import Explanation, explain

HELP = "Where a message is, when it is due, its attempts, who holds it until when, and what happens next."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the id and `--json`."""
    parser.add_argument("id", metavar="ID", help="The id of the message.")
    add_json(parser)


def run(options: Options, write: Write) -> None:
    """Explain the message. Raises `CommandError` if there is none with this id."""
    explanation = explain(options["id"], options["using"])
    if explanation is None:
        raise CommandError(_nowhere(options["id"], options["using"]))
    if options["json"]:
        write_json(write, _shape(explanation))
        return
    for line in _lines(explanation):
        write(line)


def _nowhere(id: str, using: str) -> str:
    if get_alias(using).store is not None:
        return f"No table has a message {id!r}: it was pruned or purged, or never sent to {using!r}."
    return (
        f"No message waits, runs or is buried under {id!r}. It may have finished, been cancelled or purged, or never "
        f"been sent to {using!r}. Where someone else removed it, `delayq audit` tells."
    )


def _lines(explanation: Explanation) -> Iterator[str]:
    info, now_ms = explanation.info, explanation.now_ms
    paused = info.state in (State.PENDING, State.READY) and explanation.pauses
    marks = [("parked", explanation.parked), ("paused", paused)]
    yield ", ".join([f"{info.id}: {info.state}", *(mark for mark, holds in marks if holds)])
    yield f"for: key {info.header.key!r} in queue {info.header.queue!r}"
    if info.header.tag:
        yield f"tag: {info.header.tag!r}"
    if info.header.trace_id:
        yield f"trace id: {info.header.trace_id!r}"
    yield f"sent: {to_words(info.header.sent_ms, now_ms)}"
    yield f"due: {to_words(info.due_ms, now_ms)}"
    if info.header.expires_at_ms is not None:
        yield f"expires: {to_words(info.header.expires_at_ms, now_ms)}"
    for pause in explanation.pauses:
        yield f"{pause.names} is paused {end_words(pause.until_ms, now_ms)}: {pause.reason}"
    yield from _failures(explanation)
    if info.lease_end_ms is not None:
        yield f"held by: {info.holder or 'unknown'}, lease ends {to_words(info.lease_end_ms, now_ms)}"
    if info.buried_ms is not None:
        yield f"buried: {to_words(info.buried_ms, now_ms)}"
    yield f"data: {data_text(info)}"
    yield from story_lines(explanation)
    yield f"next: {explanation.happens_next}"
    if explanation.story is None:
        for line in info.detail.splitlines():
            yield f"    {line}"


def _failures(explanation: Explanation) -> Iterator[str]:
    info = explanation.info
    yield f"failures: {info.failures}{_most(explanation)}, deaths of its worker: {info.crashes}"
    if info.error:
        yield f"last error: {info.error}"


def _most(explanation: Explanation) -> str:
    most = explanation.max_attempts
    return "" if most is None else f" of at most {counted(most, 'attempt')}"


def _shape(explanation: Explanation) -> dict[str, object]:
    """Return the documented JSON shape: a message, and what happens next."""
    return {
        **message_shape(explanation.info),
        **instant("now", explanation.now_ms),
        "parked": explanation.parked,
        "pauses": [pause_shape(pause) for pause in explanation.pauses],
        "max_attempts": explanation.max_attempts,
        "happens_next": explanation.happens_next,
        "story": story_shape(explanation),
    }
