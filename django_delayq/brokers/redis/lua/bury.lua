-- uses: guard clock cut record held bury
-- bury: running -> error.
-- KEYS  1 running 2 msg 3 state 4 error 5 count
-- ARGV  per message: id, token, when its lease ran out ('' if its holder ends it), failures, crashes, error (one line),
--       detail (the traceback)
-- Returns 1 for each lease that was held, 0 for one that was lost (then nothing was changed).
probe({ 1, 4 }, { 2, 3, 5 })
local reply = {}
for i = 1, #ARGV, 7 do
  local id = ARGV[i]
  local state = read_state(read_own_state(KEYS[3], id))
  local held = is_held(id, state, ARGV[i + 1], ARGV[i + 2])
  reply[#reply + 1] = held and 1 or 0
  if held then
    redis.call('ZREM', KEYS[1], id) -- first, because it frees memory, which may be full
    state.failures, state.crashes, state.error, state.interrupted = ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], ''
    bury(KEYS[2], KEYS[3], KEYS[4], KEYS[5], id, state, ARGV[i + 6])
  end
end
return reply
