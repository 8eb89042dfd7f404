-- Find where an id waits. KEYS  1 msg 2 state 3 keys 4 count 5 suspect 6 running 7 timer 8 call cell 9 again 10.. wait sets
-- Return the zset that it is in and its message; or nil, nil and the name of its wait set, if that is not among KEYS.
local function find_waiting(sets, id, most)
  local message = read_message(KEYS[1], id, most)
  if not message or redis.call('ZSCORE', KEYS[6], id) then return nil end
  if redis.call('ZSCORE', KEYS[5], id) then return KEYS[5], message end
  local name = wait_set_of(KEYS[1], id, message)
  if not name then return nil end
  if not sets[name] then return nil, nil, name end
  if redis.call('ZSCORE', sets[name], id) then return sets[name], message end
end

-- Call `move(zset, id, message)` for each id in ARGV, from `first` on, that waits. Return per id: 1 moved, 0 not waiting, or the
-- name of its wait set. ARGV  1 number of the call, by which a repeated call gets the answer of the first; the last before the
--       ids: the most bytes of a message that is read
-- `mark(id)`, if there is one, is called for each id that runs, and returns whether it has marked it, which counts as moved.
local function each_waiting(first, move, mark)
  local answer = answered(KEYS[8], ARGV[1])
  if answer then return answer end
  probe({ 3, 5, 6 }, { 1, 2, 4, 7, 9 })
  local sets, reply = wait_sets(10), {}
  for i = first, #ARGV do
    local zset, message, elsewhere = find_waiting(sets, ARGV[i], ARGV[first - 1])
    if zset then move(zset, ARGV[i], message) end
    local is_marked = mark and not zset and redis.call('ZSCORE', KEYS[6], ARGV[i]) and mark(ARGV[i])
    reply[#reply + 1] = (zset or is_marked) and 1 or elsewhere or 0
  end
  redis.call('HDEL', KEYS[7], '') -- if memory is full, Redis allows other writes after one that needs no memory
  remember(KEYS[8], ARGV[1], reply)
  return reply
end

local function remove(total)
  return function(zset, id)
    redis.call('ZREM', zset, id)
    redis.call('HDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
    redis.call('HDEL', KEYS[9], 'm' .. id)
    count(KEYS[4], total, 1)
    if zset ~= KEYS[5] then taken(KEYS[3], zset) end
  end
end
