-- uses: guard record sets sleep
-- Which of many wait sets have something due: asked before a claim that would have to name too many.
-- Raises their wake-up marks, as a claim that finds nothing does.
-- KEYS  1 keys 2 timer
-- ARGV  the names of the sets
-- Gives now, the next due time of the others or -1, then name and due time of each set with something due.
local scores, reply, next_due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV)), { now, -1 }, math.huge
for i, score in ipairs(scores) do
  if score and tonumber(score) <= now then
    reply[#reply + 1], reply[#reply + 2] = ARGV[i], score
  elseif score then
    next_due = math.min(next_due, tonumber(score))
  end
end
sleep_until(KEYS[2], ARGV, math.min(next_due, now + 1000))
if next_due < math.huge then reply[2] = next_due end
return reply
