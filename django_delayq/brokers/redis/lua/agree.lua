-- uses: cut
-- agree: record the layout of the keys under the prefix, unless one is recorded already.
-- KEYS  1 meta
-- ARGV  1 the version of the layout 2 the number of shards
-- Returns the recorded version and number.
local said = cut(redis.call('HMGET', KEYS[1], 'layout', 'shards'), 20)
if said[2] then return { said[1] or '1', said[2] } end -- before versions were recorded, there was only 1
redis.pcall('HSET', KEYS[1], 'layout', ARGV[1], 'shards', ARGV[2]) -- may fail: memory is full, or the caller may only read
return { ARGV[1], ARGV[2] }
