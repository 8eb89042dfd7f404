-- How many shards this Redis is used with: what was said first.
-- KEYS  1 meta
-- ARGV  1 how many the caller has
-- Gives the number.
local told = redis.call('HGET', KEYS[1], 'shards')
if told then return told end
redis.call('HDEL', KEYS[1], '') -- a write that needs no memory lets the next one pass when memory is full
redis.call('HSET', KEYS[1], 'shards', ARGV[1])
return ARGV[1]
