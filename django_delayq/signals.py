"""Define Django signals about messages.

`sender` is the `Handler` of the message's key; None if this process has no handler for it. A receiver that raises harms
nothing: Django logs the error ("django.dispatch"). Receivers run in the thread in which the event happens, which may be
a worker's, so they should be quick. Every signal carries `using`, the alias. Times are epoch milliseconds.

All signals but `broker_changed` also carry `id`, `key` and `queue`, and:

- `message_sent`: `due_ms`, `created` and `running`, as in `Sent`. If the send is committed with a transaction, or waits
  for its commit, the signal is sent after the commit.
- `send_failed`: `error`. A send that waited for a commit failed after it: the broker did not take the message, or it
  is not known whether it did.
- `message_started`: `attempt`, `lateness_ms`.
- `message_finished`: `attempt`, `duration_ms`.
- `message_retried`: `attempt`, `duration_ms`, `delay_ms`, `exception`. Also sent after a snooze, with the `Snooze` as
  `exception`.
- `message_failed`: `attempt`, `error`, `exception` (None when none was raised). The message was buried.
- `message_cancelled`: `attempt`, `duration_ms`, `error` (who asked). The message was cancelled while it ran.
- `failure_kind_appeared`: `attempt`, `error`, `fingerprint`. An attempt failed in a way that is new. Each worker that
  finds no earlier failure of that kind sends the signal once for the kind.

The `sender` of `broker_changed` is the broker's class. It carries `reason`: why the broker may have lost its data (it
was restarted without them, or flushed).
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
message_cancelled = Signal()
failure_kind_appeared = Signal()
broker_changed = Signal()


def emit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send `signal`, and log whatever a receiver raises. Without receivers it costs next to nothing.

    Callers on a hot path check `signal.receivers` first, to save building the arguments.
    """
    if not signal.receivers:
        return
    try:
        signal.send_robust(sender, **kwargs)
    except BaseException:  # send_robust catches only Exception, so not a receiver's sys.exit()
        logger.exception("A receiver of a signal raised what ends a process; it is ignored.")


async def aemit(signal: Signal, sender: object, **kwargs: Any) -> None:
    """Send `signal` from async code. Sync receivers run where `sync_to_async` runs them, async ones on this loop."""
    if signal.receivers:
        await sync_to_async(emit)(signal, sender, **kwargs)
