-- Set the cursor forward: every alarm that is due up to there was scheduled.
-- KEYS  1 cursor
-- ARGV  1 the cursor that the caller went on from, or '' where there was none 2 the new one
-- Gives the cursor. One that was lost, or set back, since the caller read it stays as it is.
local cursor = redis.call('GET', KEYS[1])
if not cursor and ARGV[1] ~= '' then return nil end
if not cursor or (ARGV[1] ~= '' and tonumber(cursor) >= tonumber(ARGV[1]) and tonumber(cursor) < tonumber(ARGV[2])) then
  cursor = ARGV[2]
  redis.call('SET', KEYS[1], cursor)
end
return cursor
