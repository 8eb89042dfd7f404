-- uses: guard
-- purge: error -> gone.
-- KEYS  1 error 2 msg 3 state 4 count
-- ARGV  entries (id US token)
-- Returns 1 for each entry that was there, else 0.
probe({ 1 }, { 2, 3, 4 })
local reply = {}
for i, entry in ipairs(ARGV) do
  reply[i] = redis.call('ZREM', KEYS[1], entry)
  if reply[i] == 1 then
    redis.call('HDEL', KEYS[2], entry)
    redis.call('HDEL', KEYS[3], entry)
    count(KEYS[4], 'purged', 1)
  end
end
return reply
