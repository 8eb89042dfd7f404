-- Forget the oldest buried messages: those over the retention, and those over the maximum. Counted as dropped.
-- Gives how many were dropped; 1000 at most.
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
