-- uses: guard clock cut record sets
-- Read all that there is of each message, at one moment.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 error 6 again 7.. wait sets
-- ARGV  1 the most bytes of a message that is read; then ids, or entries (id US token) of buried messages
-- Returns now, then nine values per id: message, state, its scores in running, suspect, error and its wait set, the sends merged
-- into it and the head of the one that is kept until its run ends (lib/kept.lua), and the name of its wait set if that is not among KEYS. Each is '' if there is none. Of a message that is too large there is only the header,
-- or RS if that was not read either (lib/cut.lua); of such a state RS.
local sets, reply, most = wait_sets(7), { now }, tonumber(ARGV[1])
for a = 2, #ARGV do
  local id = ARGV[a]
  local message = read_message(KEYS[1], id, most)
  local name = wait_set_of(KEYS[1], id, message)
  local set = sets[name or '']
  local n = #reply
  if message and #message > most then message = string.match(cut(message), '^[^\30]*') end
  local state = read_field(KEYS[2], id, most)
  reply[n + 1], reply[n + 2] = message or '', state or ''
  for place = 3, 5 do reply[n + place] = redis.call('ZSCORE', KEYS[place], id) or '' end
  reply[n + 6] = set and redis.call('ZSCORE', set, id) or ''
  reply[n + 7] = read_own_state(KEYS[6], 'm' .. id) or ''
  reply[n + 8] = string.match(cut(read_message(KEYS[6], 'k' .. id, most) or ''), '^[^\30]*')
  reply[n + 9] = name and not set and name or ''
end
return reply
