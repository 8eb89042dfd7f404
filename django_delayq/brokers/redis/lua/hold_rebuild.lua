-- uses: epoch
-- Let the lock of a rebuild last longer.
-- KEYS  as in begin_rebuild.lua
-- ARGV  as in begin_rebuild.lua
-- Gives 1 to its holder, 0 where it lapsed, or went with the server's data.
if redis.call('GET', KEYS[2]) ~= identity() .. ' ' .. ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
