-- uses: guard clock sets sleep
-- Find which of many wait sets have something due: before a claim from many sets or shards, and in maintenance.
-- Raises their wake-up marks, like a claim that finds nothing.
-- KEYS  1 keys 2 timer
-- ARGV  1 for how many ms the caller may sleep 2 the channel, to wake other workers if something is due, or '' 3.. the names of
--       the wait sets
-- Returns now, the next due time of the sets with nothing due or -1, then two values per set with something due: its name, and
-- its oldest due time.
local names, due = { unpack(ARGV, 3) }, {}
local scores, reply, next_due = redis.call('ZMSCORE', KEYS[1], unpack(names)), { now, -1 }, math.huge
for i, score in ipairs(scores) do
  if score and tonumber(score) <= now then
    due[#due + 1], reply[#reply + 1], reply[#reply + 2] = names[i], names[i], score
  elseif score then
    next_due = math.min(next_due, tonumber(score))
  end
end
sleep_until(KEYS[2], names, math.min(next_due, now + ARGV[1]))
if ARGV[2] ~= '' then wake_others(KEYS[2], ARGV[2], due) end
if next_due < math.huge then reply[2] = next_due end
return reply
