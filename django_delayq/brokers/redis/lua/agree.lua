-- How many shards this Redis is used with: what was said first.
-- KEYS  1 meta
-- ARGV  1 how many the caller has
-- Gives the number.
local told = redis.call('HGET', KEYS[1], 'shards')
if told then return told end
redis.pcall('HSET', KEYS[1], 'shards', ARGV[1]) -- may fail: memory is full, or the caller may only look
return ARGV[1]
