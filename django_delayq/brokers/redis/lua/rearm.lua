-- uses: guard clock sets schedule
-- Put leased alarms of one wait set back into it, with a new due time.
-- KEYS  1 keys 2 timer 3 the wait set 4 running
-- ARGV  as in schedule.lua
probe({ 1, 3, 4 }, { 2 })
local set, claimed = '\31' .. string.gsub(set_name(KEYS[3]), ':', '\31', 1), {}
for i = 2, #ARGV, 2 do claimed[#claimed + 1] = set .. ARGV[i] end
redis.call('ZREM', KEYS[4], unpack(claimed)) -- first, because it frees memory, which may be full
schedule()
