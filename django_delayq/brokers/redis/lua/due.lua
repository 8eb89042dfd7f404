-- uses: clock
-- Find the wait sets that have something due, whichever worker serves them.
-- KEYS  1 keys
-- ARGV  1 how many at most
-- Gives their names, longest waiting first.
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
