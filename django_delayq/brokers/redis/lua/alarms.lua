-- uses: clock sets
-- Find alarms of one (queue, key), waiting or leased. One script, because they move between the two.
-- KEYS  1 running 2 the wait set
-- ARGV  members of the wait set (US pk)
-- Returns now, then two values per alarm: its due time and the end of its lease, each nil if it has none.
local set, claimed, reply = '\31' .. string.gsub(set_name(KEYS[2]), ':', '\31', 1), {}, { now }
for i, member in ipairs(ARGV) do claimed[i] = set .. member end
local dues, ends = redis.call('ZMSCORE', KEYS[2], unpack(ARGV)), redis.call('ZMSCORE', KEYS[1], unpack(claimed))
for i = 1, #ARGV do reply[2 * i], reply[2 * i + 1] = dues[i], ends[i] end
return reply
