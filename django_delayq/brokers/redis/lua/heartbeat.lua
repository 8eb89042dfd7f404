-- uses: guard clock cut
-- Record a worker's heartbeat. Remove workers without a heartbeat for a minute, pauses that have ended, and what is too long to
-- be ours.
-- KEYS  1 meta
-- ARGV  1 field ('worker:<name>') 2 the heartbeat as JSON 3 the most bytes of a field and its value 4 the same of a lane's
-- Returns now, and a flat list of all fields and their values.
redis.call('HDEL', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
redis.call('HSET', KEYS[1], ARGV[1], now .. '\31' .. ARGV[2])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local seen = string.match(all[i + 1], '^(%d+)\31')
  local ended = string.match(all[i + 1], '^%d+\31(%d+)\31')
  local is_over = seen and string.sub(all[i], 1, 7) == 'worker:' and now - seen > 60000
    or ended and string.sub(all[i], 1, 6) == 'pause:' and tonumber(ended) <= now
    or #all[i] + #all[i + 1] > tonumber(string.sub(all[i], 1, 5) == 'lane:' and ARGV[4] or ARGV[3])
  if is_over then redis.call('HDEL', KEYS[1], all[i]) end
end
return { now, cut(all, tonumber(ARGV[3])) }
