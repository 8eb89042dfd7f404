-- uses: guard clock cut record sets call kept conflict
-- send: none -> pending, for messages of one wait set. If an id waits already, lib/conflict.lua does what on_conflict says.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 keys 6 timer 7 count 8 call cell 9 again 10 the wait set 11.. where others wait
-- ARGV  1 number of the call 2 on_conflict, a comma, max_wait in ms ('' for none), a comma, while_running 3 channel 4 the most bytes of a message that is read; then per message:
--       id, flags and due time, expires US options RS body
-- Returns all due times as one text; then two values per id that was there already: its position, and 2 if it runs, 3 if it
-- does and the message was kept until the run ends, 1 if the
-- message was created all the same, the name of a wait set (nothing was changed: call again with it in KEYS), or else 0.
local answer = answered(KEYS[8], ARGV[1])
if answer then return answer end
probe({ 5 }, { 1, 6, 7 }) -- lib/conflict.lua probes its keys itself
local sets, name = wait_sets(10), set_name(KEYS[10])
local head, heads, dues, first = '1\31' .. string.gsub(name, ':', '\31', 1) .. '\31', {}, {}, math.huge
local ids, texts, members, others, reply = {}, {}, {}, {}, { '' }
for i = 5, #ARGV, 3 do
  local n, id, given = #ids + 1, ARGV[i], ARGV[i + 1]
  if not dues[given] then -- many messages have the same due time, which is formatted once
    local flags, due = string.match(given, '^(%a*)(.*)$')
    dues[given] = string.format('%.0f', due_from(due))
    heads[given] = head .. flags .. '\31' .. now .. '\31' .. dues[given] .. '\31'
  end
  ids[n], dues[n], texts[n] = id, dues[given], heads[given] .. ARGV[i + 2]
  -- If memory is full, the first of these writes fails, with nothing changed. They don't read what is there, of whatever size.
  if redis.call('HSETNX', KEYS[1], id, texts[n]) == 0 then others[#others + 1] = n else
    members[#members + 1], members[#members + 2], first = dues[n], id, math.min(first, dues[n])
  end
end
if #members > 0 then
  redis.call('ZADD', KEYS[10], unpack(members))
  note_scheduled(KEYS[5], KEYS[6], ARGV[3], name, first)
  count(KEYS[7], 'sent', #members / 2)
end
for _, n in ipairs(others) do
  local outcome
  outcome, dues[n] = conflict(ARGV[2], sets, ids[n], tonumber(dues[n]), texts[n])
  reply[#reply + 1], reply[#reply + 2] = n, outcome
end
reply[1] = table.concat(dues, ' ')
remember(KEYS[8], ARGV[1], reply)
return reply
