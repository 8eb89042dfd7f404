-- A failing script does not roll back, so keys of a foreign type (someone else's) must fail before the first write.
-- Nor does a script touch a key again that it has emptied: in a slot that moves to another node, that fails.
local function probe_key(size, key)
  local reply = redis.pcall(size, key)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then error('WRONGTYPE of ' .. key, 0) end -- Redis does not say which
    redis.call(size, key) -- raises it as Redis does
  end
end

local function probe(zsets, hashes)
  for _, i in ipairs(zsets) do probe_key('ZCARD', KEYS[i]) end
  for _, i in ipairs(hashes) do probe_key('HLEN', KEYS[i]) end
end

-- Totals come last, and never stop a move: someone else may have written what is no number.
local function count(key, total, n)
  redis.pcall('HINCRBY', key, total, n)
end
