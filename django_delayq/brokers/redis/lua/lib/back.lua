-- retry, snooze and release: what they share. Each ends leases of one wait set and puts the messages back.
-- KEYS  1 running 2 state 3 suspect 4 keys 5 timer 6 count 7 the wait set
-- ARGV  1 channel; then per message: id, token, delay in ms, error in one line
-- Gives 1 for each lease that was held, 0 for one that was lost (and then nothing was changed).
local function put_back(total, change)
  probe({ 1, 3, 4, 7 }, { 2, 5, 6 })
  local reply, moved, first = {}, 0, nil
  for i = 2, #ARGV, 4 do
    local id = ARGV[i]
    local state = read_state(redis.call('HGET', KEYS[2], id))
    local held = state.token == ARGV[i + 1]
    reply[#reply + 1] = held and 1 or 0
    if held then
      redis.call('ZREM', KEYS[1], id) -- frees first: memory may be full
      local due = change(state, tonumber(ARGV[i + 2]), ARGV[i + 3])
      redis.call('ZADD', state.crashes >= 2 and KEYS[3] or KEYS[7], due, id)
      state.token, state.due, state.worker = '', '', ''
      redis.call('HSET', KEYS[2], id, write_state(state))
      moved, first = moved + 1, math.min(first or due, due)
    end
  end
  if first then
    placed(KEYS[4], KEYS[5], ARGV[1], set_name(KEYS[7]), first)
    count(KEYS[6], total, moved)
  end
  return reply
end
