-- uses: epoch
-- Note that every alarm was put: nothing is lost until this server is started again or flushed.
-- The lock stays until it lapses, so that a repeated call gets the same answer.
-- KEYS  1 epoch 2 rebuild
-- ARGV  1 token
-- Gives 1 to the lock's holder, 0 where it lapsed, or went with the server's data.
local here = identity()
if redis.call('GET', KEYS[2]) ~= here .. ' ' .. ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], '') -- a write that needs no memory lets the next one pass when memory is full
redis.call('HSET', KEYS[1], 'rebuilt', here)
return 1
