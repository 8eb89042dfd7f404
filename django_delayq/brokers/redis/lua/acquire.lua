-- uses: record line
-- acquire: which leased messages of one limit may start now. ../limits.py says what is worked out here, and why.
-- KEYS  1 slots 2 line 3 turn
-- ARGV  1 the most slots or nothing 2 lease in ms 3 µs between two starts or nothing; then the tokens
-- Gives for each token after how many ms to ask again (0: it may start), and 1 where it waits for its turn.
local most, lease, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now_us = clock[1] * 1000000 + clock[2]
local turn = interval and math.min(tonumber(redis.call('GET', KEYS[3]) or '') or 0, now_us + interval) or 0
local line = read_line(KEYS[2])
for _, lapsed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do redis.call('ZREM', KEYS[1], lapsed) end
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * lease, '+inf')) do
  redis.call('ZADD', KEYS[1], now + 10 * lease, late) -- the clock went back
end
local held, waits, refused = redis.call('ZCARD', KEYS[1]), {}, 0
for i = 4, #ARGV do
  local holds = most and redis.call('ZSCORE', KEYS[1], ARGV[i])
  local is_free = not most or held < most
  if holds or (is_free and turn <= now_us) then
    if not holds then held, turn = held + 1, now_us + (interval or 0) end
    if most then
      redis.call('ZREM', KEYS[1], ARGV[i]) -- frees first: memory may be full
      redis.call('ZADD', KEYS[1], now + lease, ARGV[i])
      line.since = 0
    end
    waits[#waits + 1], waits[#waits + 2] = 0, 0
  else
    local until_turn = turn > now_us and math.ceil((turn + refused * interval - now_us) / 1000) or 0
    waits[#waits + 1] = math.max(until_turn, is_free and 0 or wait_in(line))
    waits[#waits + 1] = until_turn > 0 and 1 or 0
    refused = refused + 1
  end
end
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then redis.call('PEXPIRE', KEYS[1], last - now) end
write_line(KEYS[2], line)
if interval and turn > now_us then
  redis.call('SET', KEYS[3], string.format('%.0f', turn), 'PX', math.ceil((turn - now_us) / 1000))
end
return waits
