-- The wait sets among KEYS, and what must follow when one of them changes.
local function set_name(key)
  return string.match(key, '^{[^}]*}:wait:(.*)$')
end

local function wait_sets(first)
  local sets = {}
  for i = first, #KEYS do sets[set_name(KEYS[i])] = KEYS[i] end
  return sets
end

-- Something due at `due` was placed in a set. No sleeper's timer is later than the mark, so only what is nearer wakes.
local function placed(keys, timer, channel, name, due)
  redis.call('ZADD', keys, 'LT', due, name)
  local mark = redis.call('HGET', timer, name)
  if mark and tonumber(due) < tonumber(mark) then
    redis.call('HSET', timer, name, due)
    redis.call('PUBLISH', channel, due .. ' ' .. name)
  end
end

-- Something was taken out of a set: an empty one leaves the list of sets.
local function taken(keys, set)
  if redis.call('EXISTS', set) == 0 then redis.call('ZREM', keys, set_name(set)) end
end
