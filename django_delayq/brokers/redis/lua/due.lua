-- uses: clock
-- A look: which wait sets have something due, whoever serves them.
-- KEYS  1 keys
-- ARGV  1 how many at most
-- Gives their names, those first that have waited longest.
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
