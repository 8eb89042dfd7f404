-- uses: guard clock cut record sets
-- Read all that there is of each message, at one moment.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 error 6.. wait sets
-- ARGV  1 the most bytes of a message that is read; then ids, or entries (id US token) of buried messages
-- Returns now, then seven values per id: message, state, its scores in running, suspect, error and its wait set, and the name of
-- its wait set if that is not among KEYS. Each is '' if there is none. Of a message that is too large there is only the header,
-- of such a state nothing.
local sets, reply, most = wait_sets(6), { now }, tonumber(ARGV[1])
for a = 2, #ARGV do
  local id = ARGV[a]
  local message = redis.call('HGET', KEYS[1], id)
  local name = read_header(message)
  local set = sets[name or '']
  local n = #reply
  if message and #message > most then message = string.match(cut(message), '^[^\30]*') end
  local state = redis.call('HGET', KEYS[2], id)
  reply[n + 1], reply[n + 2] = message or '', state and #state <= most and state or ''
  for place = 3, 5 do reply[n + place] = redis.call('ZSCORE', KEYS[place], id) or '' end
  reply[n + 6] = set and redis.call('ZSCORE', set, id) or ''
  reply[n + 7] = name and not set and name or ''
end
return reply
