-- One lease that ran out. Gives 'reclaimed'; 'buried', the header, the failures and why; 'ghost' for a place without a
-- body; nothing, also for a later format; or the name of a wait set that is needed and not among KEYS.
-- KEYS and ARGV as in reclaim.lua.
local function ready_again(set, member, due)
  redis.call('ZADD', set, 'LT', due, member)
  placed(KEYS[6], KEYS[7], ARGV[2], set_name(set), due)
end

local function reclaim(sets, id)
  local queue, key, pk = string.match(id, '^\31([^\31]*)\31([^\31]*)(\31.*)$')
  if pk then -- an alarm proves nothing and counts nothing
    local set = sets[queue .. ':' .. key]
    if not set then return set == nil and queue .. ':' .. key or nil end -- false: a foreign key is in its place
    redis.call('ZREM', KEYS[1], id)
    ready_again(set, pk, now)
    return 'reclaimed'
  end
  local message = redis.call('HGET', KEYS[2], id)
  if message and is_newer(message) then return end
  local name, flags = read_header(message)
  if name and not sets[name] then return sets[name] == nil and name or nil end
  redis.call('ZREM', KEYS[1], id)
  if not message then return 'ghost' end
  local state = read_state(redis.call('HGET', KEYS[3], id))
  if string.sub(state.worker, 1, 1) ~= '!' then -- an interrupted one is charged nothing
    state.crashes = math.min(state.crashes + 1, 2) -- a bystander's lease lapses too: only who saw its child die charges the third
  end
  if not name or string.find(flags, 'o', 1, true) then
    state.error = not name and 'its header can not be read'
      or 'its lease ran out; it may not have started, or have run in part, and must not start twice'
    bury(KEYS[2], KEYS[3], KEYS[5], KEYS[8], id, state, '')
    return 'buried', string.match(message, '^[^\30]*'), state.failures, state.error
  end
  local due = tonumber(state.due) or now
  state.token, state.due, state.worker = '', '', ''
  redis.call('HSET', KEYS[3], id, write_state(state))
  count(KEYS[8], 'reclaimed', 1)
  if state.crashes == 2 then redis.call('ZADD', KEYS[4], due, id) else ready_again(sets[name], id, due) end
  return 'reclaimed'
end
