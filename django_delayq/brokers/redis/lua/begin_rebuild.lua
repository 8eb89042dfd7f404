-- uses: epoch
-- Let one caller at a time put every alarm again, where they may be gone.
-- KEYS  1 epoch 2 rebuild
-- ARGV  1 token 2 how long the lock lasts in ms
-- Gives 1 to the caller that may, 0 where nothing was lost or another one is at it.
local here = identity()
local lock, held = here .. ' ' .. ARGV[1], redis.call('GET', KEYS[2])
if redis.call('HGET', KEYS[1], 'rebuilt') == here then return 0 end
-- A lock from before a restart binds nobody: what its holder had put may be gone.
if held and held ~= lock and string.sub(held, 1, #here) == here then return 0 end
redis.call('SET', KEYS[2], lock, 'PX', ARGV[2])
return 1
