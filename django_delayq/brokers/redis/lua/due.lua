-- uses: clock
-- Find the wait sets that have something due.
-- KEYS  1 keys
-- ARGV  1 how many at most
-- Returns their names, the one with the oldest due time first.
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
