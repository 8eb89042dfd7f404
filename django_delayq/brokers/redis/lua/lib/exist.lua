-- Return for each field of a hash whether it has a value. HMGET is one call, but it would read the messages that are there, each of
-- which may have any size.
local function exist(key, fields)
  local there = {}
  for n, field in ipairs(fields) do there[n] = redis.call('HSTRLEN', key, field) > 0 end
  return there
end
