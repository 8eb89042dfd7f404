-- uses: guard cut record
-- finish: running -> finished. The message is removed, and counted.
-- KEYS  1 running 2 msg 3 state 4 count
-- ARGV  n ids, then their n tokens; n at most 1000
-- Returns 1 for each lease that was held, 0 for one that was lost (then nothing was changed).
probe({ 1 }, { 2, 3, 4 })
local reply, held, seen, n = {}, {}, {}, #ARGV / 2
local states = redis.call('HMGET', KEYS[3], unpack(ARGV, 1, n))
for i = 1, n do
  local is_held = holds(states[i], ARGV[n + i]) and not seen[ARGV[i]] -- an id may be named twice
  reply[i] = is_held and 1 or 0
  if is_held then held[#held + 1], seen[ARGV[i]] = ARGV[i], true end
end
if #held > 0 then
  redis.call('ZREM', KEYS[1], unpack(held))
  redis.call('HDEL', KEYS[2], unpack(held))
  redis.call('HDEL', KEYS[3], unpack(held))
  count(KEYS[4], 'finished', #held)
end
return reply
