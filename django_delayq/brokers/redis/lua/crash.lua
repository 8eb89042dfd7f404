-- uses: guard clock record sets bury
-- crash: the child process that ran it died. running -> ready, or suspect at two; the third -> error.
-- KEYS  1 running 2 state 3 suspect 4 keys 5 timer 6 count 7 the wait set 8 msg 9 error
-- ARGV  1 channel; then per message: id, token, error in one line
-- Gives 1 for each lease that was held, 0 for one that was lost (and then nothing was changed).
probe({ 1, 3, 4, 7, 9 }, { 2, 5, 6, 8 })
local reply = {}
for i = 2, #ARGV, 3 do
  local id, state = ARGV[i], read_state(redis.call('HGET', KEYS[2], ARGV[i]))
  local held = state.token == ARGV[i + 1]
  reply[#reply + 1] = held and 1 or 0
  if held then
    redis.call('ZREM', KEYS[1], id) -- frees first: memory may be full
    state.crashes, state.error = state.crashes + 1, ARGV[i + 2]
    if state.crashes >= 3 then
      state.error = 'killed its worker ' .. state.crashes .. ' times: ' .. state.error
      bury(KEYS[8], KEYS[2], KEYS[9], KEYS[6], id, state, '')
    else
      local due = tonumber(state.due) or now
      state.token, state.due, state.worker = '', '', ''
      redis.call('HSET', KEYS[2], id, write_state(state))
      redis.call('ZADD', state.crashes == 2 and KEYS[3] or KEYS[7], due, id)
      placed(KEYS[4], KEYS[5], ARGV[1], set_name(KEYS[7]), due)
    end
  end
end
return reply
