-- uses: guard clock cut sets
-- Read the totals and the sizes of all sets, at one moment.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 error 6 count 7 keys 8.. the wait sets
-- ARGV  none
-- Returns now, bodies, states, running, suspects, due suspects, errors, totals (a flat list), pending, ready, and the names of
-- wait sets that are listed in `keys` and are not among KEYS (then call again with them).
local pending, ready, unnamed, sets = 0, 0, {}, wait_sets(8)
for _, set in pairs(sets) do
  local due = redis.call('ZCOUNT', set, '-inf', now)
  ready, pending = ready + due, pending + redis.call('ZCARD', set) - due
end
for _, name in ipairs(cut(redis.call('ZRANGE', KEYS[7], 0, -1))) do
  if not sets[name] then unnamed[#unnamed + 1] = name end
end
return { now, redis.call('HLEN', KEYS[1]), redis.call('HLEN', KEYS[2]), redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[4]), redis.call('ZCOUNT', KEYS[4], '-inf', now), redis.call('ZCARD', KEYS[5]),
  cut(redis.call('HGETALL', KEYS[6])), pending, ready, unnamed }
