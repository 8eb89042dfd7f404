-- uses: guard clock cut record sets call waiting
-- cancel: pending|ready -> cancelled. If it is said who asks, a message that runs is marked: it is cancelled when its lease ends,
-- unless it finishes. What was kept for the end of its run is cancelled with it; what is sent later is kept.
-- KEYS  1 msg 2 state 3 keys 4 count 5 suspect 6 running 7 timer 8 call cell 9 again 10.. wait sets
-- ARGV  1 number 2 '' to leave alone those that run, else US and who asks 3 the most bytes of a message that is read 4.. the ids
-- Returns per id: 1 cancelled or marked, 0 not waiting, or the name of a wait set (nothing was changed: call again with it in KEYS).
local function mark(id)
  local state = read_state(read_own_state(KEYS[2], id))
  if state.token == '' then return false end
  redis.call('HDEL', KEYS[9], 'k' .. id) -- if memory is full, Redis allows other writes after one that needs no memory
  if state.cancel == '' then
    state.cancel = string.format('%.0f ', now) .. string.sub(ARGV[2], 2)
    redis.call('HSET', KEYS[2], id, write_state(state))
  end
  return true
end
return each_waiting(4, remove('cancelled'), ARGV[2] ~= '' and mark)
