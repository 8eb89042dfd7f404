-- uses: guard clock cut record sets
-- rescue: error -> ready, with its counts reset. Refused if its id waits or runs.
-- KEYS  1 msg 2 state 3 error 4 keys 5 timer 6 count 7.. wait sets
-- ARGV  1 channel 2 the most bytes of a message that is read 3.. entries (id US token)
-- Returns per entry: 1 rescued, 0 not there or refused, or the name of a wait set (nothing was changed: call again with it in
-- KEYS).
probe({ 3, 4 }, { 1, 2, 5, 6 })
local sets, reply = wait_sets(7), {}
for i = 3, #ARGV do
  local entry, id = ARGV[i], string.match(ARGV[i], '^[^\31]*')
  local message = read_message(KEYS[1], entry, ARGV[2])
  local name = read_header(message)
  if not name or redis.call('HEXISTS', KEYS[1], id) == 1 then
    reply[#reply + 1] = 0
  elseif not sets[name] then
    reply[#reply + 1] = name
  else
    redis.call('ZREM', KEYS[3], entry)
    redis.call('HDEL', KEYS[1], entry)
    redis.call('HDEL', KEYS[2], entry)
    write_scheduled(KEYS[1], id, message, now)
    redis.call('ZADD', sets[name], now, id)
    note_scheduled(KEYS[4], KEYS[5], ARGV[1], name, now)
    count(KEYS[6], 'rescued', 1)
    reply[#reply + 1] = 1
  end
end
return reply
