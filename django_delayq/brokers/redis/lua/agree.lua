-- agree: record the layout of the keys under the prefix. What was recorded first holds.
-- KEYS  1 meta
-- ARGV  1 the version of the layout and 2 the number of shards, to record where none is
-- Gives the version and the number that hold.
local said = redis.call('HMGET', KEYS[1], 'layout', 'shards')
if said[2] then return { said[1] or '1', said[2] } end -- before there were versions it was the first
redis.pcall('HSET', KEYS[1], 'layout', ARGV[1], 'shards', ARGV[2]) -- may fail: memory is full, or the caller may only look
return { ARGV[1], ARGV[2] }
