-- release: release permits of one limit.
-- KEYS  1 permits
-- ARGV  the tokens that may hold a permit
redis.call('ZREM', KEYS[1], unpack(ARGV))
