-- uses: record
-- A look: how many of the next messages of some places are of a later format, which this version leaves alone.
-- KEYS  1 msg 2.. suspect, wait sets
-- ARGV  1 how many of each place to look at
-- Gives how many.
local newer = 0
for i = 2, #KEYS do
  for _, id in ipairs(redis.call('ZRANGE', KEYS[i], 0, ARGV[1] - 1)) do
    local message = redis.call('HGET', KEYS[1], id) -- one at a time: a page of large ones is much memory
    if message and is_newer(message) then newer = newer + 1 end
  end
end
return newer
