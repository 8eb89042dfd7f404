-- uses: clock cut
-- Find the wait sets that have something due.
-- KEYS  1 keys
-- ARGV  1 how many at most
-- Returns their names, the one with the oldest due time first.
return cut(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1]))
