-- uses: guard clock sets call exist
-- send by a Spark job: none -> pending, for messages of one wait set. An id is left as it is if it waits or runs, or is in the
-- job's ledger, even if its message is over. So a job that is run again sends nothing twice.
-- KEYS  1 msg 2 keys 3 timer 4 count 5 call cell 6 the wait set 7 job (its ledger)
-- ARGV  1 number of the call 2 channel 3 ms to keep the ledger; then per message: id, flags and due time, expires US options RS
--       body
-- Returns per message: 1 created, 0 not.
local answer = answered(KEYS[5], ARGV[1])
if answer then return answer end
probe({ 2, 6 }, { 1, 3, 4 })
local head = '1\31' .. string.gsub(set_name(KEYS[6]), ':', '\31', 1) .. '\31'
local ids, bodies, members, heads, dues, reply, ours, first = {}, {}, {}, {}, {}, {}, {}, math.huge
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local sent = redis.call('SMISMEMBER', KEYS[7], unpack(ids)) -- a key of another type fails here, with nothing changed
local there = exist(KEYS[1], ids)
for n, id in ipairs(ids) do
  reply[n] = (there[n] or sent[n] == 1 or ours[id]) and 0 or 1
  ours[#ours + 1], ours[id] = id, true
  if reply[n] == 1 then
    local given = ARGV[3 * n + 2]
    if not dues[given] then -- many messages have the same due time, which is formatted once
      local flags, due = string.match(given, '^(%a*)(.*)$')
      dues[given] = string.format('%.0f', due_from(due))
      heads[given] = head .. flags .. '\31' .. now .. '\31' .. dues[given] .. '\31'
    end
    first = math.min(first, dues[given])
    bodies[#bodies + 1], bodies[#bodies + 2] = id, heads[given] .. ARGV[3 * n + 3]
    members[#members + 1], members[#members + 2] = dues[given], id
  end
end
if #bodies > 0 then
  redis.call('HSET', KEYS[1], unpack(bodies)) -- the first write: if memory is full it fails here, with nothing changed
  redis.call('ZADD', KEYS[6], unpack(members))
  note_scheduled(KEYS[2], KEYS[3], ARGV[2], set_name(KEYS[6]), string.format('%.0f', first))
  count(KEYS[4], 'sent', #bodies / 2)
end
if #ours > 0 then redis.call('SADD', KEYS[7], unpack(ours)) end
redis.call('PEXPIRE', KEYS[7], ARGV[3])
remember(KEYS[5], ARGV[1], reply)
return reply
