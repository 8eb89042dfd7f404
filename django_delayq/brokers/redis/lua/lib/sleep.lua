-- Raise the wake-up marks of sets to `until_ms`, until when the caller may sleep. No worker sleeps longer than until the mark
-- of a set that it waits for.
local function sleep_until(timer, names, until_ms)
  if #names == 0 then return end
  local marks, raised = redis.call('HMGET', timer, unpack(names)), {}
  for i, name in ipairs(names) do
    if (tonumber(marks[i] or '') or 0) < until_ms then
      raised[#raised + 1], raised[#raised + 2] = name, until_ms
    end
  end
  if #raised > 0 then
    redis.call('HDEL', timer, '') -- if memory is full, Redis allows other writes after one that needs no memory
    redis.call('HSET', timer, unpack(raised))
  end
end

-- Wake other workers for sets in which due messages are left, at most once a second for each set.
local function wake_others(timer, channel, names)
  for _, name in ipairs(names) do
    local called = 'called ' .. name
    if now - (tonumber(redis.call('HGET', timer, called) or '') or 0) >= 1000 then
      redis.call('HDEL', timer, called)
      redis.call('HSET', timer, called, now)
      redis.call('PUBLISH', channel, now .. ' ' .. name)
    end
  end
end
