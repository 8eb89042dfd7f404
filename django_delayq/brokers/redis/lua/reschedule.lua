-- uses: guard clock cut record sets call waiting
-- reschedule: pending|ready -> pending, with a new due time, from which its expiry counts.
-- KEYS  as in cancel.lua
-- ARGV  1 number of the call 2 due time (lib/clock.lua) 3 channel 4 the most bytes of a message that is read 5.. the ids
-- Returns per id: 1 rescheduled, 0 not waiting, or the name of a wait set (nothing was changed: call again with it in KEYS).
local due = due_from(ARGV[2])
return each_waiting(5, function(zset, id, message)
  redis.call('HDEL', KEYS[7], '') -- if memory is full, Redis allows other writes after one that needs no memory
  write_scheduled(KEYS[1], id, message, due)
  redis.call('ZADD', zset, due, id)
  if zset ~= KEYS[5] then note_scheduled(KEYS[3], KEYS[7], ARGV[3], set_name(zset), due) end
end)
