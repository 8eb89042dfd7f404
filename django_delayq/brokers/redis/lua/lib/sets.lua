-- Name the wait sets among KEYS, and note changes of one.
local function set_name(key)
  return string.match(key, '^{[^}]*}:wait:(.*)$')
end

-- Return the wait sets from KEYS[first] on, by name. Raises for a key of another type, before anything is written.
local function wait_sets(first)
  local sets = {}
  for i = first, #KEYS do
    probe_key('ZCARD', KEYS[i])
    sets[set_name(KEYS[i])] = KEYS[i]
  end
  return sets
end

-- Return the wait sets like `wait_sets`, but with false for a key of another type, whose messages are left alone.
local function own_wait_sets(first)
  local sets = {}
  for i = first, #KEYS do
    local kind = redis.call('TYPE', KEYS[i]).ok
    sets[set_name(KEYS[i])] = (kind == 'zset' or kind == 'none') and KEYS[i]
  end
  return sets
end

-- Note that something due at `due` was scheduled in a set. No worker sleeps longer than until the wake-up mark of a set, so it
-- is woken only for something that is due before that.
local function note_scheduled(keys, timer, channel, name, due)
  redis.call('ZADD', keys, 'LT', due, name)
  local mark = tonumber(redis.call('HGET', timer, name) or '')
  if mark and tonumber(due) < mark then
    redis.call('HSET', timer, name, due)
    redis.call('PUBLISH', channel, due .. ' ' .. name)
  end
end

-- Note that something was taken out of a set: an empty set leaves the list `keys`. EXISTS may fail here (see lib/guard.lua).
local function taken(keys, set)
  if redis.pcall('EXISTS', set) ~= 1 then redis.call('ZREM', keys, set_name(set)) end
end
