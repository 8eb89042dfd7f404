-- uses: clock
-- pause: write a field of meta, "<when it was made> US <until when, or ''> US <reason>", and notify every worker.
-- KEYS  1 meta
-- ARGV  1 field ('pause:<queue>:<key>') 2 until US reason 3 channel 4 the message to publish
redis.call('HDEL', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
redis.call('HSET', KEYS[1], ARGV[1], now .. '\31' .. ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
