-- Redis does not undo the writes of a script that fails. So a key of a wrong type, which someone else has written, must make
-- the script fail before its first write. And a script must not use a key again that it has emptied, because that fails while
-- the slot moves to another node.
local function probe_key(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then error('WRONGTYPE of ' .. key, 0) end -- Redis does not say which
    redis.call(command, key, ...) -- raises any other error as it is
  end
  return reply
end

local function probe(zsets, hashes)
  for _, i in ipairs(zsets) do probe_key('ZCARD', KEYS[i]) end
  for _, i in ipairs(hashes) do probe_key('HLEN', KEYS[i]) end
end

-- Count last, and ignore an error: someone else may have written a total that is no number, which must not stop a move.
local function count(key, total, n)
  redis.pcall('HINCRBY', key, total, n)
end
