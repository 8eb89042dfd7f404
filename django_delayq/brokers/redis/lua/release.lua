-- release: free permits of one limit.
-- KEYS  1 permits
-- ARGV  the tokens that may hold one
redis.call('ZREM', KEYS[1], unpack(ARGV))
