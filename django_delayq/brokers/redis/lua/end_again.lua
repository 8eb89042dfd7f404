-- uses: guard clock cut record sets held bury kept
-- finish, cancel, bury, retry, snooze, release, crash or lapse of a message for whose end a send was kept, and that send.
-- KEYS  1 running 2 msg 3 state 4 suspect 5 error 6 keys 7 timer 8 count 9 again 10 the wait set of what was kept
-- ARGV  1 channel 2 the most bytes of a message that is read 3 id 4 token 5 when its lease ran out ('' if its holder ends it)
--       6 the state to which it goes 7 the total that counts it ('' for none) 8 failures 9 crashes 10 error (one line)
--       11 detail (the traceback)
-- Returns 1 if the lease was held, 0 if it was lost, 2 if nothing is kept or the message is to be cancelled instead, or the name of
-- the wait set of what is kept (for 0, 2 and a name nothing was changed).
probe({ 1, 4, 5, 6, 10 }, { 2, 3, 7, 8, 9 })
local id = ARGV[3]
local state = read_state(read_own_state(KEYS[3], id))
if not is_held(id, state, ARGV[4], ARGV[5]) then return 0 end
if state.cancel ~= '' and (ARGV[6] == 'pending' or ARGV[6] == 'failed') then return 2 end -- it has been asked for meanwhile
local kept = read_kept(KEYS[9], id, ARGV[4], ARGV[2])
local name = read_header(kept and kept.message)
if not name then
  redis.call('HDEL', KEYS[9], 'k' .. id)
  return 2
end
if name ~= set_name(KEYS[10]) then return name end
local due, first, merged, is_new = math.max(kept.due, now), now, kept.merged, ARGV[6] ~= 'pending'
if not is_new then -- it takes the place of the message that would wait again
  local before, count_before = read_merged(KEYS[9], id, read_message(KEYS[2], id, ARGV[2]))
  if ARGV[8] == '0' and ARGV[9] == '0' then first = before end
  due, merged = bounded(due, first, kept.max_wait), merged + count_before + 1
end
redis.call('ZREM', KEYS[1], id) -- first, because it frees memory, which may be full
if ARGV[6] == 'failed' then
  state.failures, state.crashes, state.error, state.interrupted, state.progress = ARGV[8], ARGV[9], ARGV[10], '', ''
  bury(KEYS[2], KEYS[3], KEYS[5], KEYS[8], id, state, ARGV[11])
end
local sent = string.match(kept.message, '^%d+\31[^\31]*\31[^\31]*\31[^\31]*\31(%d+)\31')
write_scheduled(KEYS[2], id, kept.message, string.format('%.0f', due))
write_merged(KEYS[9], id, tonumber(sent), math.min(first, kept.first), merged)
redis.call('HDEL', KEYS[9], 'k' .. id)
if ARGV[6] ~= 'failed' then redis.call('HDEL', KEYS[3], id) end
redis.call('ZADD', KEYS[10], due, id)
note_scheduled(KEYS[6], KEYS[7], ARGV[1], name, due)
if is_new then count(KEYS[8], 'sent', 1) end
if ARGV[7] ~= '' and ARGV[6] ~= 'failed' then count(KEYS[8], ARGV[7], 1) end
return 1
