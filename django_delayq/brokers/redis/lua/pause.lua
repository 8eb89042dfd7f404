-- uses: clock
-- pause: write a field of meta, "paused US until or nothing US reason", and notify every worker.
-- KEYS  1 meta
-- ARGV  1 field ('pause:<queue>:<key>') 2 until US reason 3 channel 4 what is said there
redis.call('HDEL', KEYS[1], '') -- a write that needs no memory lets the next one pass when memory is full
redis.call('HSET', KEYS[1], ARGV[1], now .. '\31' .. ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
