"""How long messages of a queue and key ran, estimated from some that ended last."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django_delayq.store.database import Database
from django_delayq.store.sql.selects import Look
from django_delayq.store.statistics import Pair

MOST = 50
"""How many messages of a queue and key, at most, tell how long they ran."""
LAST = 2_000
"""How many messages are searched for them: the last that ended, of all queues and keys."""
ENOUGH = 5
"""A queue and key with fewer of them there gets a look of its own."""
LOOKED = 2_000
"""How many rows of a table those looks read, shared out among these queues and keys; at least `MOST` of each."""

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
"""Each attempt counts as long as the last. A message that was cancelled, or expired, ran for no time: NULL.

An attempt that seems to have ended before it started, by a clock that was set back, took no time; MariaDB refuses the
product.
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How many messages ran, and for how long in all."""

    number: int
    total_ms: int


def of_the_last(database: Database) -> Look:
    """Return a look at how long messages ran, for the queues and keys of which some are among the `LAST`.

    Its rows are (queue, key, number, total ms).
    """
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
    """Return the queues and keys of which fewer than `ENOUGH` are among the `LAST`."""
    return [pair for pair in pairs if pair not in ran or ran[pair].number < ENOUGH]


def of_each(database: Database, pairs: Sequence[Pair]) -> Look:
    """Return a look at how long messages of each queue and key ran. Its rows are (i, number, total ms)."""
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
    """Return, for each key that has any, the mean time that its messages ran in these queues, in ms."""
    number, total_ms = Counter[str](), Counter[str]()
    for queue, key in pairs:
        of_pair = ran.get((queue, key), Ran(0, 0))
        number[key] += of_pair.number
        total_ms[key] += of_pair.total_ms
    return {key: total_ms[key] / number[key] for key in number if number[key]}
