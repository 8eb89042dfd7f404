-- uses: clock line epoch
-- renew_permits: let messages of one limit that run keep their permits, also where Redis has forgotten them.
-- KEYS  1 permits 2 line
-- ARGV  1 lease in ms; then the tokens
-- Returns the identity of the data (lib/epoch.lua).
local line = read_line(KEYS[2])
redis.call('ZREM', KEYS[1], '') -- if memory is full, Redis allows other writes after one that needs no memory
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
line.since = 0
write_line(KEYS[2], line)
return identity()
