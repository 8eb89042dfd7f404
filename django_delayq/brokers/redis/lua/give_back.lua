-- give_back: slots of one limit are free again.
-- KEYS  1 slots
-- ARGV  the tokens that may hold one
redis.call('ZREM', KEYS[1], unpack(ARGV))
