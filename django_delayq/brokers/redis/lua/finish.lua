-- uses: guard cut record
-- finish: running -> finished. The message is removed, and counted.
-- KEYS  1 running 2 msg 3 state 4 count 5 again
-- ARGV  n ids, then their n tokens; n at most 1000
-- Returns 1 for each lease that was held, 0 for one that was lost, 2 where a send is kept for its end (for 0 and 2 nothing was
-- changed: end_again.lua ends those).
probe({ 1 }, { 2, 3, 4, 5 })
local reply, held, seen, n = {}, {}, {}, #ARGV / 2
local states, merged = redis.call('HMGET', KEYS[3], unpack(ARGV, 1, n)), {}
local may_be_kept = redis.call('EXISTS', KEYS[5]) == 1
for i = 1, n do
  local is_held = holds(states[i], ARGV[n + i]) and not seen[ARGV[i]] -- an id may be named twice
  local is_kept = is_held and may_be_kept and redis.call('HEXISTS', KEYS[5], 'k' .. ARGV[i]) == 1
  reply[i] = is_kept and 2 or is_held and 1 or 0
  if is_held and not is_kept then
    held[#held + 1], seen[ARGV[i]] = ARGV[i], true
    merged[#merged + 1] = 'm' .. ARGV[i]
  end
end
if #held > 0 then
  redis.call('ZREM', KEYS[1], unpack(held))
  redis.call('HDEL', KEYS[2], unpack(held))
  redis.call('HDEL', KEYS[3], unpack(held))
  if may_be_kept then redis.call('HDEL', KEYS[5], unpack(merged)) end
  count(KEYS[4], 'finished', #held)
end
return reply
