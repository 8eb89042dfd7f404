"""Write and move rows of the store's tables with plain psycopg, in the rawest way: these are the floors."""

from time import perf_counter

import psycopg

from benchmarks.site import DATA_BYTES

BATCH = 100
COLUMNS = (
    "alias, message_id, queue, key, data, tag, trace_id, due_at, scheduled_at, sent_at, expires_at, max_attempts, "
    "timeout_ms, at_most_once, failures, crashes, error, worker, history"
)
INSERT = (
    f"INSERT INTO delayq_ready ({COLUMNS}) VALUES ('floor', %s, 'default', 'bench.noop', %s, NULL, NULL,"
    " %s, %s, %s, NULL, NULL, NULL, false, 0, 0, '', '', '[]')"
)
CLAIM = f"""
    WITH due AS (
        SELECT id FROM delayq_ready WHERE alias = 'floor' AND queue = 'default' AND key = 'bench.noop' AND due_at <= %s
        AND (lease_until IS NULL OR lease_until <= %s) ORDER BY due_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED)
    UPDATE delayq_ready SET lease_until = %s, token = %s, worker = 'floor' WHERE id IN (SELECT id FROM due)
    RETURNING id, message_id, key, data"""
FINISH = f"""
    WITH gone AS (DELETE FROM delayq_ready WHERE id = ANY(%s) AND token = %s RETURNING id, {COLUMNS})
    INSERT INTO delayq_finish (id, {COLUMNS}, outcome, ended_at) SELECT *, 'finished', %s FROM gone"""
"""End up to `BATCH` rows. `CLAIM` and `FINISH` only move rows, and keep no other promise of a store."""

SPREAD = f"""
    INSERT INTO delayq_ready ({COLUMNS})
    SELECT 'default', %(key)s || '-' || now.ms || '-' || n, 'default', %(key)s, %(data)s, NULL, NULL,
    now.ms + (n * %(every_ms)s)::bigint, now.ms + (n * %(every_ms)s)::bigint, now.ms, NULL,
    NULL, NULL, false, 0, 0, '', '', '[]'
    FROM generate_series(1, %(count)s) AS n,
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(after_ms)s AS ms) AS now"""
"""Insert messages that fall due one after the other."""
DAY_MS = 86_400_000


def insert(client: psycopg.Connection, ids: list[str], due_ms: int, batch: int) -> float:
    """Write messages, `batch` rows a transaction. Return the seconds that it took."""
    data = DATA_BYTES.decode()
    started = perf_counter()
    with client.cursor() as cursor:
        for n in range(0, len(ids), batch):
            with client.transaction():
                cursor.executemany(INSERT, [(id, data, due_ms, due_ms, due_ms) for id in ids[n : n + batch]])
    return perf_counter() - started


def insert_waiting(client: psycopg.Connection, count: int) -> None:
    """Write messages that fall due from tomorrow on, a millisecond apart."""
    insert_spread(client, "bench.noop", count, DAY_MS, 1)


def insert_spread(client: psycopg.Connection, key: str, count: int, after_ms: int, every_ms: float) -> None:
    """Write messages: the first is due after `after_ms`, and one more every `every_ms`."""
    data = DATA_BYTES.decode()
    client.execute(SPREAD, {"key": key, "data": data, "count": count, "after_ms": after_ms, "every_ms": every_ms})


def drain(client: psycopg.Connection, now_ms: int) -> float:
    """Take and finish all due messages. Return the seconds that it took."""
    started = perf_counter()
    token = 1
    while rows := client.execute(CLAIM, [now_ms, now_ms, now_ms + 15_000, token]).fetchall():
        client.execute(FINISH, [[pk for pk, *_ in rows], token, now_ms])
        token += 1
    return perf_counter() - started
