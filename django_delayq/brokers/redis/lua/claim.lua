-- uses: guard clock cut record sets call describe lease share sleep
-- claim: ready -> running, for the due messages and alarms of each wait set, earliest first.
-- KEYS  1 running 2 msg 3 state 4 keys 5 timer 6 call cell 7 count 8.. the wait sets
-- ARGV  1 token, which is the number of the call too 2 lease in ms 3 worker 4 channel 5 the most bytes of a message that is read
--       6.. per set: how many to lease (100 at most in all), and how many of these could start at once (a message that must not
--       start twice is leased only among them)
-- Returns now, the next due time or -1, until when a worker with slots left may sleep, 1 if more is due than was leased (else 0),
-- then four values per message (lib/describe.lua).
local ids = answered(KEYS[6], ARGV[1])
if ids then return { now, -1, now, 1, unpack(describe(ids, {}, ARGV[5], {})) } end
probe({ 1, 4 }, { 2, 3, 5, 7 })
local described, counts, filled = {}, {}, {}
for s = 8, #KEYS do
  local most = math.min(ARGV[2 * s - 10], 100 - #described / 4)
  counts[s], filled[s] = share(KEYS[s], most, tonumber(ARGV[2 * s - 9]), ARGV[5], described)
end
local next_due, sleep, unfilled, behind = math.huge, now + 1000, {}, {}
for s = 8, #KEYS do
  local name, count = set_name(KEYS[s]), counts[s]
  local first = count and tonumber(redis.call('ZRANGE', KEYS[s], count, count, 'WITHSCORES')[2]) or math.huge
  if count and count > 0 then redis.call('ZREMRANGEBYRANK', KEYS[s], 0, count - 1) end
  if count then redis.call('ZREM', KEYS[4], first < math.huge and '' or name) end -- needs no memory; then others may follow
  if first < math.huge then redis.call('ZADD', KEYS[4], first, name) end
  if first <= now then behind[#behind + 1] = name end
  if count and not filled[s] then unfilled[#unfilled + 1], sleep = name, math.min(sleep, first) end
  next_due = math.min(next_due, first)
end
if #described > 0 then lease(described, ARGV[1], now + ARGV[2], ARGV[3]) end
sleep_until(KEYS[5], unfilled, sleep)
wake_others(KEYS[5], ARGV[4], behind)
return { now, next_due < math.huge and next_due or -1, sleep, #behind > 0 and 1 or 0, unpack(described) }
