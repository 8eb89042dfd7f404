"""How long messages of a queue and key ran, told by some that ended last."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django_delayq.store.database import Database
from django_delayq.store.figures import Pair
from django_delayq.store.unions import Look

MOST = 50
"""How long messages of a queue and key ran is told by so many of them."""
LAST = 2_000
"""They are looked for among so many messages, the last that ended of all queues and keys."""
ENOUGH = 5
"""A queue and key with fewer of them there gets a look of its own."""
LOOKED = 2_000
"""That is in so many rows of a table, shared out among these queues and keys; in `MOST` of each at least."""

_FINISHED = (
    "SELECT {names} ended_at, CASE WHEN outcome <> 'finished' THEN NULL"
    " WHEN started_at < ended_at THEN (ended_at - started_at) * (failures + 1) WHEN started_at >= ended_at THEN 0 END"
    " AS ran_ms FROM delayq_finish WHERE alias = %s{of} ORDER BY ended_at DESC LIMIT %s"
)
_BURIED = (
    "SELECT {names} ended_at, CASE"
    " WHEN started_at < ended_at THEN (ended_at - started_at) * CASE WHEN failures > 0 THEN failures ELSE 1 END"
    " WHEN started_at >= ended_at THEN 0 END"
    " AS ran_ms FROM delayq_error WHERE alias = %s{of} ORDER BY ended_at DESC LIMIT %s"
)
"""Each attempt counts as long as the last. What was cancelled, or expired, ran for no time: NULL.
What seems to have ended before it started, by a clock that was set back, took none; MariaDB refuses the product."""


@dataclass(frozen=True, slots=True)
class Ran:
    """So many messages ran, and for so long in all."""

    number: int
    total_ms: int


def of_the_last(database: Database) -> Look:
    """Rows of (queue, key, number, total ms), of the queues and keys of which some that ran are among the `LAST`."""
    finished, buried = (each.format(names='queue, "key",', of="") for each in (_FINISHED, _BURIED))
    sql = (
        'SELECT queue, "key", count(*) AS number, sum(ran_ms) AS total_ms FROM (SELECT queue, "key", ran_ms,'
        ' row_number() OVER (PARTITION BY queue, "key" ORDER BY ended_at DESC) AS place FROM ('
        f"SELECT * FROM ({finished}) AS finished UNION ALL SELECT * FROM ({buried}) AS buried"
        f" ORDER BY ended_at DESC LIMIT {LAST}) AS ended WHERE ran_ms IS NOT NULL"
        f') AS newest WHERE place <= {MOST} GROUP BY queue, "key"'
    )
    return sql, [(database.alias, LAST, database.alias, LAST)]


def rare(ran: Mapping[Pair, Ran], pairs: Iterable[Pair]) -> list[Pair]:
    """The queues and keys of which fewer than `ENOUGH` are among the `LAST`."""
    return [pair for pair in pairs if pair not in ran or ran[pair].number < ENOUGH]


def of_each(database: Database, pairs: Sequence[Pair]) -> Look:
    """Rows of (i, number, total ms), of each queue and key."""
    finished = _FINISHED.format(names="", of=' AND queue = %s AND "key" = %s')
    buried = _BURIED.format(names="queue,", of=' AND "key" = %s')
    sql = (
        "SELECT {i} AS i, count(*) AS number, sum(ran_ms) AS total_ms FROM (SELECT ran_ms FROM ("
        f"SELECT * FROM ({finished}) AS finished"
        f" UNION ALL SELECT ended_at, ran_ms FROM ({buried}) AS buried WHERE queue = %s"
        f") AS ended WHERE ran_ms IS NOT NULL ORDER BY ended_at DESC LIMIT {MOST}) AS newest"
    )
    looked = max(LOOKED // max(len(pairs), 1), MOST)
    return sql, [(database.alias, queue, key, looked, database.alias, key, looked, queue) for queue, key in pairs]


def means_ms(ran: Mapping[Pair, Ran], pairs: Iterable[Pair]) -> dict[str, float]:
    """Of each key how long its messages ran in these queues, in ms: the mean, where there are any."""
    number, total_ms = Counter[str](), Counter[str]()
    for queue, key in pairs:
        of_pair = ran.get((queue, key), Ran(0, 0))
        number[key] += of_pair.number
        total_ms[key] += of_pair.total_ms
    return {key: total_ms[key] / number[key] for key in number if number[key]}
