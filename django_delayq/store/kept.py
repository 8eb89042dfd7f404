"""Send what was kept while messages ran, in the transaction that ends their runs.

The row of a message that runs has the send in `again` (core/kept.py). What ends runs leaves such rows to this module,
so that the others cost nothing more. A sender writes `again` under the row's lock: an end that does not find it there
has taken the row before the sender could, who then finds the id free, or waiting.
"""

from collections.abc import Collection, Mapping, Sequence

from django_delayq.brokers.base import Alarm, LeaseId, Transition
from django_delayq.core.kept import Kept, decode
from django_delayq.core.requests import CancelRequest
from django_delayq.store import enqueue
from django_delayq.store.database import Database, in_transaction
from django_delayq.store.sql.dialect import JOIN_LEASES, LEASES, Sql


@in_transaction
def end(
    database: Database, transitions: Sequence[Transition]
) -> tuple[dict[LeaseId, bool | CancelRequest], list[Alarm]]:
    """Write transitions of messages for whose end something was kept, and send that.

    Return the leases that still stood, as `Dialect.apply` does, and the alarms of what was sent. A row is left alone if
    somebody has asked meanwhile to cancel its message, and the transition yields to that.
    """
    yielding = {(one.id, one.token) for one in transitions if one.yields_to_cancel}
    kept = _take(database, [(int(one.pk), one.id, one.token) for one in transitions], yielding)
    ended = [one for one in transitions if (one.id, one.token) in kept]
    found = database.dialect.apply(database, ended) if ended else {}
    for one in ended:
        one.is_replaced = True
    return found, send(database, {id: each for (id, _), each in kept.items()})


def _take(
    database: Database,
    leases: Sequence[tuple[int, str, int]],
    yielding: Collection[LeaseId] = (),
    *,
    waits: bool = False,
) -> dict[LeaseId, Kept]:
    """Lock the rows of leases that still stand, and take what was kept out of them. Return it by lease.

    Unless it `waits`, a row that another transaction holds is left out. So is a lease of `yielding` whose message is to
    be cancelled.
    """
    dialect = database.dialect
    held = dialect.values_table("held", LEASES, leases)
    found = dialect.joined(
        held, Sql(f"{JOIN_LEASES} AND r.again IS NOT NULL"), dialect.lock if waits else dialect.skip_locked
    )
    rows = database.rows(
        f"SELECT r.id, r.message_id, r.token, r.again, r.cancel_at IS NOT NULL FROM {found.text}", found.parameters
    )
    taken = {
        (id, token): (pk, text)
        for pk, id, token, text, is_cancelled in rows
        if not is_cancelled or (id, token) not in yielding
    }
    forget(database, [pk for pk, _ in taken.values()])
    return {lease: decode(text) for lease, (_, text) in taken.items()}


def forget(database: Database, pks: Sequence[int]) -> None:
    """Remove what was kept for the runs of rows that the caller's transaction has locked."""
    if pks:
        of_pks = database.dialect.among("id", pks)
        database.changed(f"UPDATE delayq_ready SET again = NULL WHERE {of_pks.text}", of_pks.parameters)


def send(database: Database, kept: Mapping[str, Kept]) -> list[Alarm]:
    """Send what was kept under the ids, whose runs the caller's transaction has ended. Return the alarms.

    The counts go on from what was kept, and a message is as old as its send.
    """
    if not kept:
        return []
    messages = [each.message(id) for id, each in kept.items()]
    enqueued, alarms = enqueue.enqueue(database, messages, "replace")
    for answer in enqueued:
        each = kept[answer.id]
        first = "%s" if answer.created else "CASE WHEN first_at < %s THEN first_at ELSE %s END"
        counted = "%s" if answer.created else "merged + %s"
        first_ms = [each.first_ms] * first.count("%s")
        database.changed(
            f"UPDATE delayq_ready SET first_at = {first}, merged = {counted}, sent_at = %s"
            " WHERE alias = %s AND message_id = %s",
            [*first_ms, each.merged, each.header.sent_ms, database.alias, answer.id],
        )
    return alarms


@in_transaction
def finish_here(database: Database, pk: int, id: str, token: int, started_ms: int) -> list[Alarm] | None:
    """Finish a message and send what was kept for its end, as the end of an atomic handler's transaction.

    Return the alarms of what was sent; None if the lease is lost.
    """
    kept = _take(database, [(pk, id, token)], waits=True)
    if not kept or not database.dialect.finish_here(database, pk, token, started_ms):
        return None
    return send(database, {id: each for (id, _), each in kept.items()})
