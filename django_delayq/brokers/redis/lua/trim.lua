-- uses: guard record
-- Forget the oldest buried messages: those over the retention, and those over the maximum. Counted as dropped.
-- KEYS  1 error 2 msg 3 state 4 count
-- ARGV  1 retention in ms 2 maximum
-- Gives how many were dropped; 1000 at most.
probe({ 1 }, { 2, 3, 4 })
local over = math.min(redis.call('ZCARD', KEYS[1]) - ARGV[2], 1000)
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1], 'LIMIT', 0, 1000)
if over > #old then old = redis.call('ZRANGE', KEYS[1], 0, over - 1) end
if #old > 0 then
  redis.call('ZREM', KEYS[1], unpack(old))
  redis.call('HDEL', KEYS[2], unpack(old))
  redis.call('HDEL', KEYS[3], unpack(old))
  count(KEYS[4], 'dropped', #old)
end
return #old
