-- uses: clock line epoch
-- acquire: decide which leased messages of one limit may start now. core/limits.py explains the arithmetic.
-- KEYS  1 permits 2 line 3 turn
-- ARGV  1 the most permits, or '' 2 lease in ms 3 µs between two starts, or '' 4 µs before its turn that a start is allowed
--       5 µs within which it is used 6 1 if its turn is forgotten once it is over, else 0; then for each request its token
--       and how many starts it asks for
-- Returns three values per request: after how many ms to ask again (0: all is granted), 1 if it waits for its turn, else 0, and
-- how many of its starts are granted. The last value is the identity of the data (lib/epoch.lua).
local most, lease, interval = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tolerance, within, now_us = tonumber(ARGV[4]), tonumber(ARGV[5]), clock[1] * 1000000 + clock[2]
local turn = 0
if interval then
  turn = tonumber(string.match(redis.call('GET', KEYS[3]) or '', '^%d+$') or 0)
  local ahead = math.max(within, math.min(math.floor(interval / 2), 1000000)) -- of any start, also if this one is not
  turn = math.min(turn, now_us + math.max(tolerance, ahead) + interval) -- the clock may have gone back
end
redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
local line, held, answers = nil, 0, {}
if most then
  line = read_line(KEYS[2])
  for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * lease, '+inf')) do
    redis.call('ZADD', KEYS[1], now + 10 * lease, late) -- the clock went back
  end
  held = redis.call('ZCOUNT', KEYS[1], now + 1, '+inf')
end
for i = 7, #ARGV, 2 do
  local holds = most and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or '0') > now
  local is_free, wanted, granted = not most or held < most, tonumber(ARGV[i + 1]), 0
  if holds or (is_free and turn - tolerance <= now_us) then
    granted = wanted
    if not holds then
      held = held + 1
      if interval then
        local first = math.max(turn, now_us + within)
        granted = math.min(wanted, math.max(math.floor((now_us + tolerance - first) / interval), 0) + 1)
        turn = first + granted * interval
      end
    end
    if most then
      redis.call('ZADD', KEYS[1], now + lease, ARGV[i])
      line.since = 0
    end
  end
  local wait, until_turn = 0, 0
  if granted < wanted then
    until_turn = math.min(math.max(math.ceil((turn - tolerance - now_us) / 1000), 0), 300000)
    wait = math.max(until_turn, is_free and 0 or wait_in(line))
  end
  local last = #answers
  answers[last + 1], answers[last + 2], answers[last + 3] = wait, until_turn > 0 and 1 or 0, granted
end
if most then
  for _, lapsed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do redis.call('ZREM', KEYS[1], lapsed) end
  write_line(KEYS[2], line)
end
if interval and turn > now_us then
  redis.call('SET', KEYS[3], string.format('%.0f', turn))
  if ARGV[6] == '1' then redis.call('PEXPIRE', KEYS[3], math.ceil((turn - now_us) / 1000) + 1000) end
end
answers[#answers + 1] = identity()
return answers
