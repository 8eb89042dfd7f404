-- uses: guard clock cut record held bury
-- bury: running -> error.
-- KEYS  1 running 2 msg 3 state 4 error 5 count 6 again
-- ARGV  per message: id, token, when its lease ran out ('' if its holder ends it), failures, crashes, error (one line),
--       detail (the traceback)
-- Returns as requeue.lua does.
probe({ 1, 4 }, { 2, 3, 5, 6 })
local reply = {}
for i = 1, #ARGV, 7 do
  local id = ARGV[i]
  local state = read_state(read_own_state(KEYS[3], id))
  local held = is_held(id, state, ARGV[i + 1], ARGV[i + 2])
  local answer = ending(KEYS[6], id, held, state)
  reply[#reply + 1] = answer
  if answer == 1 then
    redis.call('ZREM', KEYS[1], id) -- first, because it frees memory, which may be full
    state.failures, state.crashes, state.error, state.interrupted, state.progress = ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], '', ''
    bury(KEYS[2], KEYS[3], KEYS[4], KEYS[5], id, state, ARGV[i + 6])
    redis.call('HDEL', KEYS[6], 'm' .. id)
  end
end
return reply
