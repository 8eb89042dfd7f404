"""Run a write inside the site: the checks before it, the batches of each task, and setting back the timer's cursor."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

import pyarrow as pa

from django_delayq.api.registry import find, unknown_key
from django_delayq.brokers import get_backend
from django_delayq.conf import Alias
from django_delayq.core.errors import DelayqError
from django_delayq.spark.errors import SparkError
from django_delayq.spark.write.options import WriteOptions
from django_delayq.spark.write.quarantine import Quarantine
from django_delayq.spark.write.rows import Bad, new_messages_of
from django_delayq.spark.write.sinks import check_sink, sink_of
from django_delayq.spark.write.summary import Written

_SHOWN = 3


def check_site(alias: Alias, options: WriteOptions) -> None:
    """Raise an error if the site can't take the messages. This connects to nothing."""
    check_sink(alias, options)
    if options.key is not None:
        check_key(alias, options.key)


def check_key(alias: Alias, key: str) -> None:
    """Raise `UnknownKey` if a message of this key would be refused because no handler serves it."""
    if alias.options.unknown_keys == "error" and find(alias.name, key) is None:
        raise unknown_key(alias.name, key)


def write(batches: Iterable[pa.RecordBatch], options: WriteOptions, alias: Alias) -> Written:
    """Send the rows of one task. Each batch is checked before the first of its messages is sent."""
    sink = sink_of(alias, options)
    kept = Quarantine(options.quarantine) if options.quarantine else None
    read = quarantined = 0
    for batch in batches:
        messages, bad = new_messages_of(batch, options, alias)
        if bad and kept is None:
            raise SparkError(_told(bad, batch.num_rows))
        if bad and kept is not None:
            kept.add(batch, bad)
        sink.send(messages)
        read += batch.num_rows
        quarantined += len(bad)
    taken = sink.finish()
    return Written(read, taken.sent, taken.already_there, quarantined, kept.finish() if kept else None)


def tell_timer(alias: Alias) -> None:
    """Let the next pass schedule the messages that are due soon, because no task has told the broker of them."""
    store = get_backend(alias.name).store
    if store is not None and store.broker.window is not None:
        with suppress(DelayqError), store.database.available():  # otherwise a sweep finds them
            store.mark.check()
            store.broker.window.set_cursor_back(store.database.now_ms())


def _told(bad: Sequence[Bad], rows: int) -> str:
    first = "; ".join(f"row {each.row}: {each.reason}" for each in bad[:_SHOWN])
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return (
        f"{len(bad)} of the {rows} rows of a batch are bad, and nothing of that batch was sent: {first}{more} "
        "(onBadRow='quarantine' keeps them apart instead.)"
    )
