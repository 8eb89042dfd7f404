-- Do what on_conflict says for an id that is there already. Returns its outcome, as in the reply of enqueue.lua, and its due
-- time. KEYS and ARGV as in enqueue.lua.
local function conflict(options, sets, id, due, message)
  probe({ 3, 4 }, { 2, 9 })
  local mode, max_wait, while_running = string.match(options, '^(%a+),(%d*),(%a+)$')
  local old = read_message(KEYS[1], id, ARGV[4])
  local state = read_state(read_own_state(KEYS[2], id))
  if redis.call('ZSCORE', KEYS[3], id) then
    if while_running == 'again' and state.token ~= '' then
      return 3, keep(KEYS[9], id, state.token, due, max_wait, message, ARGV[4])
    end
    return 2, tonumber(state.due) or now
  end
  local name = wait_set_of(KEYS[1], id, old)
  local from, at = KEYS[4], redis.call('ZSCORE', KEYS[4], id)
  if not at and name then
    from = sets[name]
    if not from then return name, 0 end
    at = redis.call('ZSCORE', from, id)
  end
  if not at then -- a body in no place is no message: this message replaces it
    redis.call('HSET', KEYS[1], id, message)
    redis.call('ZADD', KEYS[10], due, id)
    note_scheduled(KEYS[5], KEYS[6], ARGV[3], set_name(KEYS[10]), due)
    count(KEYS[7], 'sent', 1)
    return 1, due
  end
  at = tonumber(at)
  if mode == 'replace' then
    local first, merged = read_merged(KEYS[9], id, old)
    if state.failures > 0 or state.crashes > 0 then first = now end -- what was sent first has run
    due = bounded(due, first, max_wait)
    redis.call('ZREM', from, id)
    redis.call('HDEL', KEYS[2], id)
    if max_wait == '' then redis.call('HSET', KEYS[1], id, message) else
      write_scheduled(KEYS[1], id, message, string.format('%.0f', due))
    end
    write_merged(KEYS[9], id, now, first, merged + 1)
    redis.call('ZADD', KEYS[10], due, id)
    if from ~= KEYS[4] then taken(KEYS[5], from) end
    name = set_name(KEYS[10])
  elseif (mode == 'earliest' and due < at) or (mode == 'latest' and due > at) then
    write_scheduled(KEYS[1], id, old, due)
    redis.call('ZADD', from, due, id)
  else
    return 0, at
  end
  if name then note_scheduled(KEYS[5], KEYS[6], ARGV[3], name, due) end -- a suspect that can't be read has none
  return 0, due
end
