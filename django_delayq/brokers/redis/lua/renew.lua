-- uses: guard clock cut record
-- Make leases end a lease's length from now, and write how far their handlers are.
-- KEYS  1 running 2 state
-- ARGV  1 lease in ms; then per lease: id, token, its progress ('' to leave that alone)
-- Returns 1 for each lease that was held, or a text on who has asked to cancel the message; 0 for one that was lost.
probe({ 1 }, { 2 })
local reply = {}
for i = 2, #ARGV, 3 do
  local written = read_own_state(KEYS[2], ARGV[i])
  local held = holds(written, ARGV[i + 1])
  local state = held and read_state(written)
  reply[#reply + 1] = held and (state.cancel ~= '' and state.cancel or 1) or 0
  if held then
    redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
    if ARGV[i + 2] ~= '' then
      state.progress = ARGV[i + 2]
      redis.call('HSET', KEYS[2], ARGV[i], write_state(state))
    end
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i])
  end
end
return reply
