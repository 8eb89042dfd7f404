-- How many shards this Redis is used with: what was said first, or changed since (renumber.py).
-- KEYS  1 meta
-- ARGV  1 what to say where nobody has
-- Gives the number, and the one that was changed and has not drained ('' for none).
local told = redis.call('HMGET', KEYS[1], 'shards', 'old_shards')
if told[1] then return { told[1], told[2] or '' } end
redis.pcall('HSET', KEYS[1], 'shards', ARGV[1]) -- may fail: memory is full, or the caller may only look
return { ARGV[1], '' }
