-- uses: guard clock sets call
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
local ids, members, heads, dues, reply, first = {}, {}, {}, {}, {}, math.huge
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local sent = redis.call('SMISMEMBER', KEYS[7], unpack(ids)) -- a key of another type fails here, with nothing changed
for n, id in ipairs(ids) do
  local given = ARGV[3 * n + 2]
  if not dues[given] then -- many messages have the same due time, which is formatted once
    local flags, due = string.match(given, '^(%a*)(.*)$')
    dues[given] = string.format('%.0f', due_from(due))
    heads[given] = head .. flags .. '\31' .. now .. '\31' .. dues[given] .. '\31'
  end
  -- If memory is full, the first of these writes fails, with nothing changed. They don't read what is there, of whatever size.
  reply[n] = sent[n] == 1 and 0 or redis.call('HSETNX', KEYS[1], id, heads[given] .. ARGV[3 * n + 3])
  if reply[n] == 1 then
    members[#members + 1], members[#members + 2], first = dues[given], id, math.min(first, dues[given])
  end
end
if #members > 0 then
  redis.call('ZADD', KEYS[6], unpack(members))
  note_scheduled(KEYS[2], KEYS[3], ARGV[2], set_name(KEYS[6]), string.format('%.0f', first))
  count(KEYS[4], 'sent', #members / 2)
end
if #ids > 0 then redis.call('SADD', KEYS[7], unpack(ids)) end
redis.call('PEXPIRE', KEYS[7], ARGV[3])
remember(KEYS[5], ARGV[1], reply)
return reply
