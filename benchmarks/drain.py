"""Measure draining due messages with the real worker and an empty handler, against raw scripts to claim and settle."""

from time import perf_counter, time_ns

import redis

from benchmarks.bulk import floor_fill
from benchmarks.drains import drain_s
from benchmarks.rates import in_turn
from benchmarks.result import Result, at_least
from benchmarks.scale import scaled
from benchmarks.site import fill, site

BATCH = 100
FLOOR_KEYS = ("floor:wait", "floor:running", "floor:msg", "floor:state")
FLOOR_CLAIM = f"""
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, {BATCH})
if #ids == 0 then return {{ {{}}, {{}} }} end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #ids - 1)
local running, states = {{}}, {{}}
for i, id in ipairs(ids) do
  running[2 * i - 1], running[2 * i] = ARGV[2], id
  states[2 * i - 1], states[2 * i] = id, ARGV[3]
end
redis.call('ZADD', KEYS[2], unpack(running))
redis.call('HSET', KEYS[4], unpack(states))
return {{ ids, redis.call('HMGET', KEYS[3], unpack(ids)) }}
"""
FLOOR_SETTLE = """
local held, tokens = {}, redis.call('HMGET', KEYS[4], unpack(ARGV, 2))
for i, token in ipairs(tokens) do
  if token == ARGV[1] then held[#held + 1] = ARGV[i + 1] end
end
redis.call('ZREM', KEYS[2], unpack(held))
redis.call('HDEL', KEYS[3], unpack(held))
redis.call('HDEL', KEYS[4], unpack(held))
return #held
"""


def run() -> list[Result]:
    """Return our messages a second as a ratio to the floor's."""
    count = scaled(100_000, least=1_000)
    with site() as server, server.client() as client:

        def ours() -> float:
            fill(count)
            return drain_s(server, count)

        rates = in_turn(ours, lambda: _floor_s(client, count), count)
    return [at_least(f"draining {count:,} / raw claim and settle in batches of {BATCH}", rates.ratio, 0.4, str(rates))]


def _floor_s(client: redis.Redis, count: int) -> float:
    due_ms = time_ns() // 1_000_000
    floor_fill(client, [f"floor-message-{number:08}" for number in range(count)], due_ms)
    claim, settle = client.script_load(FLOOR_CLAIM), client.script_load(FLOOR_SETTLE)
    started = perf_counter()
    for token in range(1, count):
        ids, _ = client.evalsha(claim, len(FLOOR_KEYS), *FLOOR_KEYS, due_ms, due_ms + 15_000, token)
        if not ids:
            break
        client.evalsha(settle, len(FLOOR_KEYS), *FLOOR_KEYS, token, *ids)
    return perf_counter() - started
