-- uses: guard record sets call conflict
-- send: none -> pending, for messages of one wait set; for an id that waits already, what on_conflict says.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 keys 6 timer 7 count 8 call slot 9 the wait set
--       10.. the wait sets of ids that wait elsewhere
-- ARGV  1 number 2 on_conflict 3 channel; then per message: id, due, flags, expires US options RS body
-- Gives two values per message: 1 created, 0 not, 2 running, or the name of a wait set to call again with (nothing was
-- changed then); and its due time.
local answer = answered(KEYS[8], ARGV[1])
if answer then return answer end
probe({ 5 }, { 6, 7 }) -- the others: in conflict, or by the first write
local sets, name = wait_sets(9), set_name(KEYS[9])
local queue, key = string.match(name, '^([^:]*):(.*)$')
local head = '1\31' .. queue .. '\31' .. key .. '\31'
local ids, reply, messages, bodies, members, first = {}, {}, {}, {}, {}, math.huge
for i = 4, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
local taken_ids = redis.call('HMGET', KEYS[1], unpack(ids))
for n, id in ipairs(ids) do
  local i = 4 * n
  local due = due_from(ARGV[i + 1])
  messages[n] = table.concat({ head .. ARGV[i + 2], now, due, ARGV[i + 3] }, '\31')
  reply[2 * n - 1], reply[2 * n] = false, due -- false: in conflict, answered below
  if not taken_ids[n] and not messages[id] then
    messages[id], reply[2 * n - 1], first = true, 1, math.min(first, due)
    bodies[#bodies + 1], bodies[#bodies + 2] = id, messages[n]
    members[#members + 1], members[#members + 2] = due, id
  end
end
if #bodies > 0 then
  redis.call('HSET', KEYS[1], unpack(bodies)) -- the first write: full memory fails here, with nothing changed
  redis.call('ZADD', KEYS[9], unpack(members))
  placed(KEYS[5], KEYS[6], ARGV[3], name, first)
  count(KEYS[7], 'sent', #bodies / 2)
end
for n, id in ipairs(ids) do
  if not reply[2 * n - 1] then
    reply[2 * n - 1], reply[2 * n] = conflict(ARGV[2], sets, id, reply[2 * n], messages[n])
  end
end
remember(KEYS[8], ARGV[1], reply)
return reply
