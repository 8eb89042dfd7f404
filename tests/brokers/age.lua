-- Test only: makes all that a shard holds older by some ms, since the clock of a Redis script can't be moved.
-- ARGV  1 the shard's tag 2 meta key 3 ms
local tag, meta, ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local function age_scores(key)
  for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ms, member) end
end
local function age_values(key, pattern, age)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local aged, found = string.gsub(all[i + 1], pattern, age)
    if found > 0 then redis.call('HSET', key, all[i], aged) end
  end
end
for _, key in ipairs(redis.call('KEYS', tag .. 'wait:*')) do age_scores(key) end
for _, place in ipairs({ 'running', 'suspect', 'error', 'keys' }) do age_scores(tag .. place) end
age_values(tag .. 'msg', '^(1\31[^\31]*\31[^\31]*\31[^\31]*\31)(%d+)\31(%d+)', function(head, sent, scheduled)
  return head .. (sent - ms) .. '\31' .. (scheduled - ms)
end)
age_values(tag .. 'again', '^(%d+)\31(%d+)\31(%d+)$', function(sent, first, merged)
  return (sent - ms) .. '\31' .. (first - ms) .. '\31' .. merged
end)
age_values(tag .. 'again', '^(%d+)\31(%d+)\31(%d+)(\31%d+\31%d*\30[^\31]*\31[^\31]*\31[^\31]*\31[^\31]*\31)(%d+)\31(%d+)', function(token, due, first, head, sent, scheduled)
  return token .. '\31' .. (due - ms) .. '\31' .. (first - ms) .. head .. (sent - ms) .. '\31' .. (scheduled - ms)
end)
age_values(tag .. 'state', '^(%d*\31%d+\31%-?%d+\31)(%d+)', function(head, due) return head .. (due - ms) end)
if meta ~= '' then
  age_values(meta, '^(%d+\31)(%d+)\31', function(paused, until_ms) return paused .. (until_ms - ms) .. '\31' end)
  age_values(meta, '^(%d+)\31', function(seen) return (seen - ms) .. '\31' end)
end
