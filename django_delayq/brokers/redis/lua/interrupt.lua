-- uses: guard clock cut record
-- interrupt: the message stays running for a moment, because its process is about to end. Then its lapse counts no crash.
-- KEYS  1 running 2 state
-- ARGV  1 how long the lease still lasts, in ms; then per message: id, token
-- Returns 1 for each lease that was held, 0 for one that was lost or is interrupted already (Transition.is_repeated).
probe({ 1 }, { 2 })
local reply = {}
for i = 2, #ARGV, 2 do
  local state = read_state(read_own_state(KEYS[2], ARGV[i]))
  local held = state.token == ARGV[i + 1] and state.interrupted == ''
  reply[#reply + 1] = held and 1 or 0
  if held then
    redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
    redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i])
    state.interrupted = '1'
    redis.call('HSET', KEYS[2], ARGV[i], write_state(state))
  end
end
return reply
