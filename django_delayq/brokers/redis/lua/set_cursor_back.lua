-- Set the cursor back, by a millisecond at least, so that whoever goes on from there does not set it forward.
-- KEYS  1 cursor
-- ARGV  1 the due time up to which it is still true
-- Gives 1, or 0 where there is none.
local cursor = tonumber(redis.call('GET', KEYS[1]) or '')
if not cursor then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', math.min(cursor - 1, tonumber(ARGV[1]))))
return 1
