-- The wait sets among KEYS, and what must follow when one of them changes.
local function set_name(key)
  return string.match(key, '^{[^}]*}:wait:(.*)$')
end

-- Raises for one of another type, before anything is written.
local function wait_sets(first)
  local sets = {}
  for i = first, #KEYS do
    probe_key('ZCARD', KEYS[i])
    sets[set_name(KEYS[i])] = KEYS[i]
  end
  return sets
end

-- Like `wait_sets`, but gives false for one of another type: what belongs there is left alone.
local function own_wait_sets(first)
  local sets = {}
  for i = first, #KEYS do
    local kind = redis.call('TYPE', KEYS[i]).ok
    sets[set_name(KEYS[i])] = (kind == 'zset' or kind == 'none') and KEYS[i]
  end
  return sets
end

-- Note that something due at `due` was scheduled in a set. No sleeper's timer is later than the mark, so only what is nearer
-- wakes.
local function note_scheduled(keys, timer, channel, name, due)
  redis.call('ZADD', keys, 'LT', due, name)
  local mark = tonumber(redis.call('HGET', timer, name) or '')
  if mark and tonumber(due) < mark then
    redis.call('HSET', timer, name, due)
    redis.call('PUBLISH', channel, due .. ' ' .. name)
  end
end

-- Note that something was taken out of a set: an empty one leaves the list of sets. Does not use `call`: see lib/guard.lua.
local function taken(keys, set)
  if redis.pcall('EXISTS', set) ~= 1 then redis.call('ZREM', keys, set_name(set)) end
end
