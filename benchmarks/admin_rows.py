"""Let the database make the rows of a busy site after a month. The admin's pages are measured on them."""

import psycopg

from benchmarks.stored_rows import COLUMNS
from django_delayq.core.figures import COUNTS, MINUTE_MS, MOST_PAIRS

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
COMMON_KEY, RARE_KEY = "order.key0", "order.rare"
COMMON_QUEUE, RARE_QUEUE = "default", "slow"
COMMON_FAILURE, RARE_FAILURE = "ValueError in shop.delayed.step0", "OSError in shop.delayed.upload"
RARE = 20
"""How many rows have the rare key, queue or kind of failure, at the far end of each list."""

_COMMON = """
    'default', 'order:' || n || ':close', 'default', 'order.key' || n %% 20,
    '{"order":' || n || ',"email":"customer' || n %% 1000 || '@example.com","note":"Leave it at the back door."}',
    CASE WHEN n %% 10 = 0 THEN 'customer:' || n / 100 END, NULL"""

_READY = f"""
    INSERT INTO delayq_ready ({COLUMNS}, lease_until, token)
    SELECT {_COMMON}, due, due, %(now)s - {DAY_MS}, NULL, NULL, NULL, false,
    CASE WHEN n %% 100 = 0 THEN 1 + n / 100 %% 4 ELSE 0 END, 0,
    CASE WHEN n %% 100 = 0 THEN 'ValueError: no' ELSE '' END, '',
    '[]', CASE WHEN n <= 8 THEN %(now)s + 3600000 END, CASE WHEN n <= 8 THEN n END
    FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT %(now)s - 3600000 + n * {MONTH_MS}::bigint / %(count)s AS due) AS due"""
_FINISHED = f"""
    INSERT INTO delayq_finish (id, {COLUMNS}, started_at, outcome, ended_at)
    SELECT n + 100000000, {_COMMON}, ended - n %% 1000, ended - n %% 1000, ended - {DAY_MS}, NULL, NULL, NULL, false,
    CASE WHEN n %% 100 = 0 THEN 1 + n / 100 %% 4 ELSE 0 END, 0, '', 'host:1', '[]', ended - n %% 900,
    CASE WHEN n %% 50 = 0 THEN 'cancelled' ELSE 'finished' END, ended
    FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT %(now)s - n * {MONTH_MS}::bigint / %(count)s AS ended) AS ended"""
_FAILED = f"""
    INSERT INTO delayq_error (id, {COLUMNS}, started_at, detail, fingerprint, ended_at)
    SELECT n + 200000000, {_COMMON}, ended - n %% 1000, ended - n %% 1000, ended - {DAY_MS}, NULL, NULL, NULL, false,
    n %% 5, 0, 'ValueError: no', 'host:1', '[]', ended - n %% 900,
    repeat('  File "shop/delayed.py", line 42' || E'\\n', 20),
    'ValueError in shop.delayed.step' || CASE WHEN n %% 3 = 0 THEN n %% 30 ELSE 0 END, ended
    FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT %(now)s - n * {MONTH_MS}::bigint / %(count)s AS ended) AS ended"""
_RARE = """
    UPDATE {table} SET "key" = %(key)s, queue = %(queue)s {more}
    WHERE id IN (SELECT id FROM {table} ORDER BY {farthest} LIMIT %(rare)s)"""

_FIGURES = f"""
    INSERT INTO delayq_figure (id, alias, period, at, queue, "key", {", ".join(COUNTS)})
    SELECT ('x' || left(md5(random()::text), 15))::bit(60)::bigint, 'default', %(period)s,
    %(now)s - %(now)s %% %(part)s - part * %(part)s::bigint, 'default', 'order.key' || pair,
    {", ".join(["pair + part"] * len(COUNTS))}
    FROM generate_series(0, %(parts)s - 1) AS part, generate_series(1, %(pairs)s) AS pair,
    generate_series(1, %(workers)s) AS worker"""
WORKERS = 8
_PERIODS = (  # length and number of the parts that are kept, queues and keys, rows of each
    ("new", MINUTE_MS, 5, MOST_PAIRS, WORKERS),
    ("minute", MINUTE_MS, 120, 1, 1),
    ("hour", 60 * MINUTE_MS, 49, MOST_PAIRS, 1),
    ("day", DAY_MS, 31, MOST_PAIRS, 1),
    ("total", MINUTE_MS, 1, MOST_PAIRS, 1),
)
"""The most rows of figures that workers leave after a month."""


def insert(client: psycopg.Connection, count: int, now_ms: int) -> None:
    """Insert figures, and `count` rows into each table, due in the month ahead or ended in the month before."""
    for statement in (_READY, _FINISHED, _FAILED):
        client.execute(statement, {"now": now_ms, "count": count})
    for period, part_ms, parts, pairs, workers in _PERIODS:
        of_period = {"period": period, "part": part_ms, "parts": parts, "pairs": pairs, "workers": workers}
        client.execute(_FIGURES, {"now": now_ms, **of_period})
    of_rare = {"key": RARE_KEY, "queue": RARE_QUEUE, "rare": RARE, "failure": RARE_FAILURE}
    for table, farthest, more in (
        ("delayq_ready", "due_at DESC", ""),
        ("delayq_finish", "ended_at", ""),
        ("delayq_error", "ended_at", ", fingerprint = %(failure)s"),
    ):
        client.execute(_RARE.format(table=table, farthest=farthest, more=more), of_rare)
