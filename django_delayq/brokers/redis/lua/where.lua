-- uses: guard clock record sets
-- Find messages, and all that there is to know of each, in one atomic look.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 error 6.. wait sets
-- ARGV  ids, or entries (id US token) of buried messages
-- Gives now, then seven values per id: message, state, running score, suspect score, error score, wait score ('' for none),
-- and the name of its wait set when that is not among KEYS.
local sets, reply = wait_sets(6), { now }
for _, id in ipairs(ARGV) do
  local message = redis.call('HGET', KEYS[1], id)
  local name = read_header(message)
  local set = sets[name or '']
  local n = #reply
  reply[n + 1], reply[n + 2] = message or '', redis.call('HGET', KEYS[2], id) or ''
  for place = 3, 5 do reply[n + place] = redis.call('ZSCORE', KEYS[place], id) or '' end
  reply[n + 6] = set and redis.call('ZSCORE', set, id) or ''
  reply[n + 7] = name and not set and name or ''
end
return reply
