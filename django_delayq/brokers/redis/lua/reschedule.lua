-- uses: guard clock record sets call waiting
-- reschedule: pending|ready -> pending, with a new due time. Its expiry moves with it.
-- KEYS  as in cancel.lua
-- ARGV  1 number 2 due ('+n': n ms from now; else an instant) 3 channel 4.. the ids
-- Gives per id 1 rescheduled, 0 not waiting, or the name of a wait set to call again with (nothing was changed then).
local due = due_from(ARGV[2])
return each_waiting(4, function(zset, id, message)
  redis.call('HDEL', KEYS[7], '') -- a write that needs no memory lets the next ones pass when memory is full
  redis.call('HSET', KEYS[1], id, with_scheduled(message, due))
  redis.call('ZADD', zset, due, id)
  if zset ~= KEYS[5] then note_scheduled(KEYS[3], KEYS[7], ARGV[3], set_name(zset), due) end
end)
