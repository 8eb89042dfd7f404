-- Drop the oldest buried messages: those that are older than the retention, and those over the maximum number.
-- Return how many were dropped: at most 1000.
local function trim(error_key, msg, state_key, totals, retention_ms, maximum)
  local over = math.min(redis.call('ZCARD', error_key) - maximum, 1000)
  local old = redis.call('ZRANGEBYSCORE', error_key, '-inf', now - retention_ms, 'LIMIT', 0, 1000)
  if over > #old then old = redis.call('ZRANGE', error_key, 0, over - 1) end
  if #old > 0 then
    redis.call('ZREM', error_key, unpack(old))
    redis.call('HDEL', msg, unpack(old))
    redis.call('HDEL', state_key, unpack(old))
    count(totals, 'dropped', #old)
  end
  return #old
end
