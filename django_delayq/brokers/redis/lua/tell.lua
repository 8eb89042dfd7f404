-- Tell a shard of another number of shards (lib/numbers.lua). It never goes back: a step that comes again is passed over.
-- KEYS  1 count
-- ARGV  1 what to tell 2 what is told at last
-- Gives nothing.
if redis.call('HGET', KEYS[1], 'shards') ~= ARGV[2] then redis.call('HSET', KEYS[1], 'shards', ARGV[1]) end
