-- uses: guard clock cut record
-- Make leases end a lease's length from now.
-- KEYS  1 running 2 state
-- ARGV  1 lease in ms; then per lease: id, token
-- Returns 1 for each lease that was held, 0 for one that was lost.
probe({ 1 }, { 2 })
local reply = {}
for i = 2, #ARGV, 2 do
  local held = holds(read_own_state(KEYS[2], ARGV[i]), ARGV[i + 1])
  reply[#reply + 1] = held and 1 or 0
  if held then
    redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i])
  end
end
return reply
