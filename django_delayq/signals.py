"""Django signals of a message's life. `sender` is the `Handler`, or None for a key without one in this process.

A receiver that raises harms nothing: Django logs it ("django.dispatch"). Receivers run where the event happens, also in
the worker's threads, so they should be quick. Every signal carries `using`, the alias; times are epoch milliseconds.

Each but `broker_changed` also carries `id`, `key` and `queue`, and:

- `message_sent`: `due_ms`, `created`, `running` of the answer. After the commit for a send that waited for one.
- `send_failed`: `error`. A send that waited for its commit was not taken, or it is not known whether it was.
- `message_started`: `attempt`, `lateness_ms`.
- `message_finished`: `attempt`, `duration_ms`.
- `message_retried`: `attempt`, `duration_ms`, `delay_ms`, `exception`. Snoozed ones too, with the `Snooze`.
- `message_failed`: `attempt`, `error`, `exception` (None when none was raised). It was buried.

`broker_changed`, sent by the broker's class, carries `reason`: why what the broker held may be gone (restarted
without its data, flushed).
"""

from typing import Any

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from django_delayq.support.logging import logger

message_sent = Signal()
send_failed = Signal()
message_started = Signal()
message_finished = Signal()
message_retried = Signal()
message_failed = Signal()
broker_changed = Signal()


def emit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send `signal`, and log whatever a receiver raises. Without receivers it costs next to nothing.

    Callers on a hot path check `signal.receivers` first, to save building the arguments.
    """
    if not signal.receivers:
        return
    try:
        signal.send_robust(sender, **kwargs)
    except BaseException:  # send_robust passes on what is no Exception, such as a receiver's sys.exit()
        logger.exception("A receiver of a signal raised what ends a process; it is ignored.")


async def aemit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send `signal` from async code. Sync receivers run where `sync_to_async` runs them, async ones on this loop."""
    if signal.receivers:
        await sync_to_async(emit)(signal, sender, **kwargs)
