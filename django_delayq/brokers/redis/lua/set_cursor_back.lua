-- Set the cursor back, and by at least 1 ms. So advance_cursor does not set it forward if its caller has read the old one.
-- KEYS  1 cursor
-- ARGV  1 the due time up to which every alarm was scheduled
-- Returns 1, or 0 if there is no cursor.
local cursor = string.match(redis.call('GET', KEYS[1]) or '', '^%d+$')
if not cursor or #cursor > 15 then return 0 end
redis.call('SET', KEYS[1], string.format('%.0f', math.min(cursor - 1, tonumber(ARGV[1]))))
return 1
