-- A failing script does not roll back, so keys of a foreign type (someone else's) must fail before the first write.
-- And what a script has emptied it does not touch again: in a slot that moves to another node, a key that is gone fails.
local function probe(zsets, hashes)
  for _, i in ipairs(zsets) do redis.call('ZCARD', KEYS[i]) end
  for _, i in ipairs(hashes) do redis.call('HLEN', KEYS[i]) end
end

-- Totals come last, and never stop a move: someone else may have written what is no number.
local function count(key, total, n)
  redis.pcall('HINCRBY', key, total, n)
end
