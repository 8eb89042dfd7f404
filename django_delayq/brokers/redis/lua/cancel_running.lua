-- uses: guard cut record held
-- cancel_running: running -> cancelled. The message is removed, and counted.
-- KEYS  1 running 2 msg 3 state 4 count 5 again
-- ARGV  per message: id, token, when its lease ran out ('' if its holder ends it)
-- Returns as finish.lua does.
probe({ 1 }, { 2, 3, 4, 5 })
local reply, cancelled = {}, 0
for i = 1, #ARGV, 3 do
  local id = ARGV[i]
  local held = is_held(id, read_state(read_own_state(KEYS[3], id)), ARGV[i + 1], ARGV[i + 2])
  local is_kept = held and redis.call('HEXISTS', KEYS[5], 'k' .. id) == 1
  reply[#reply + 1] = is_kept and 2 or held and 1 or 0
  if held and not is_kept then
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
    redis.call('HDEL', KEYS[5], 'm' .. id)
    cancelled = cancelled + 1
  end
end
if cancelled > 0 then count(KEYS[4], 'cancelled', cancelled) end
return reply
