-- Set the cursor forward, because every alarm up to there was scheduled.
-- KEYS  1 cursor
-- ARGV  1 the cursor as the caller read it, or '' if there was none 2 the new cursor
-- Returns the cursor. It stays as it is if it was lost or set back after the caller read it, or is later already.
local cursor = string.match(redis.call('GET', KEYS[1]) or '', '^%d+$')
if cursor and #cursor > 15 then cursor = nil end -- someone else wrote it: it counts as lost
if not cursor and ARGV[1] ~= '' then return nil end
if not cursor or (ARGV[1] ~= '' and tonumber(cursor) >= tonumber(ARGV[1]) and tonumber(cursor) < tonumber(ARGV[2])) then
  cursor = ARGV[2]
  redis.call('SET', KEYS[1], cursor)
end
return cursor
