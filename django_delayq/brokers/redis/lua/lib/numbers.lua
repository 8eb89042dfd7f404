-- The number of shards that this one was told of (renumber.py): none at first; '4>16' once those who know 4 only are
-- refused; '16' once what is new is placed by 16; '0' where a smaller number left it. `numbers`: whom the caller goes by,
-- each in brackets.
local function is_known(count_key, numbers)
  local told = redis.call('HGET', count_key, 'shards')
  return not told or string.find(numbers, '(' .. told .. ')', 1, true) ~= nil
end

local function refusal()
  return redis.error_reply('ERR the number of shards was changed')
end
