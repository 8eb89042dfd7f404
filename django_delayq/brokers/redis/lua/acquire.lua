-- uses: clock line epoch
-- acquire: decide which leased messages of one limit may start now. core/limits.py explains the arithmetic.
-- KEYS  1 permits 2 line 3 turn
-- ARGV  1 the most permits, or '' 2 lease in ms 3 µs between two starts, or ''; then the tokens
-- Returns two values per token: after how many ms to ask again (0: the message may start), and 1 if it waits for its turn, else
-- 0. The last value is the identity of the data (lib/epoch.lua).
local most, lease, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now_us = clock[1] * 1000000 + clock[2]
local turn = interval and math.min(tonumber(string.match(redis.call('GET', KEYS[3]) or '', '^%d+$') or 0), now_us + interval) or 0
local line = read_line(KEYS[2])
redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * lease, '+inf')) do
  redis.call('ZADD', KEYS[1], now + 10 * lease, late) -- the clock went back
end
local held, waits = redis.call('ZCOUNT', KEYS[1], now + 1, '+inf'), {}
for i = 4, #ARGV do
  local holds = most and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or '0') > now
  local is_free = not most or held < most
  if holds or (is_free and turn <= now_us) then
    if not holds then held, turn = held + 1, now_us + (interval or 0) end
    if most then
      redis.call('ZADD', KEYS[1], now + lease, ARGV[i])
      line.since = 0
    end
    waits[#waits + 1], waits[#waits + 2] = 0, 0
  else
    local until_turn = turn > now_us and math.min(math.ceil((turn - now_us) / 1000), 300000) or 0
    waits[#waits + 1], waits[#waits + 2] = math.max(until_turn, is_free and 0 or wait_in(line)), until_turn > 0 and 1 or 0
  end
end
for _, lapsed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do redis.call('ZREM', KEYS[1], lapsed) end
write_line(KEYS[2], line)
if interval and turn > now_us then redis.call('SET', KEYS[3], string.format('%.0f', turn)) end
waits[#waits + 1] = identity()
return waits
