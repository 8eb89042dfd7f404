-- uses: clock line epoch
-- acquire: decide which leased messages of one limit may start now. core/limits.py explains the arithmetic.
-- KEYS  1 permits 2 line 3 turn
-- ARGV  1 the most permits, or '' 2 lease in ms 3 µs between two starts, or '' 4 µs before its turn that a start is allowed
--       5 µs within which it is used 6 1 if its turn is forgotten once it is over, else 0; then the tokens
-- Returns two values per token: after how many ms to ask again (0: the message may start), and 1 if it waits for its turn, else
-- 0. The last value is the identity of the data (lib/epoch.lua).
local most, lease, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tolerance, within, now_us = tonumber(ARGV[4]), tonumber(ARGV[5]), clock[1] * 1000000 + clock[2]
local turn = 0
if interval then
  turn = tonumber(string.match(redis.call('GET', KEYS[3]) or '', '^%d+$') or 0)
  turn = math.min(turn, now_us + math.max(tolerance, within) + interval) -- the clock may have gone back
end
local line = read_line(KEYS[2])
redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * lease, '+inf')) do
  redis.call('ZADD', KEYS[1], now + 10 * lease, late) -- the clock went back
end
local held, waits = redis.call('ZCOUNT', KEYS[1], now + 1, '+inf'), {}
for i = 7, #ARGV do
  local holds = most and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or '0') > now
  local is_free = not most or held < most
  if holds or (is_free and turn - tolerance <= now_us) then
    if not holds then
      held = held + 1
      if interval then turn = math.max(turn, now_us + within) + interval end
    end
    if most then
      redis.call('ZADD', KEYS[1], now + lease, ARGV[i])
      line.since = 0
    end
    waits[#waits + 1], waits[#waits + 2] = 0, 0
  else
    local until_turn = math.min(math.max(math.ceil((turn - tolerance - now_us) / 1000), 0), 300000)
    waits[#waits + 1], waits[#waits + 2] = math.max(until_turn, is_free and 0 or wait_in(line)), until_turn > 0 and 1 or 0
  end
end
for _, lapsed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do redis.call('ZREM', KEYS[1], lapsed) end
write_line(KEYS[2], line)
if interval and turn > now_us then
  redis.call('SET', KEYS[3], string.format('%.0f', turn))
  if ARGV[6] == '1' then redis.call('PEXPIRE', KEYS[3], math.ceil((turn - now_us) / 1000) + 1000) end
end
waits[#waits + 1] = identity()
return waits
