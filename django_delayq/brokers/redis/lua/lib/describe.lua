-- Describe messages and alarms for claim and claim_suspect. KEYS  2 msg 3 state

-- Append four values per message to `reply`: member, due time, message, state. The member of an alarm names its set:
-- US queue US key US pk; an alarm has no message. A message of more than `most` bytes is not read: RS and its size stand for it.
local function describe(members, dues, most, reply)
  if #members == 0 then return reply end
  local sizes = {}
  for i, member in ipairs(cut(members)) do
    local size = string.byte(member) ~= 31 and redis.call('HSTRLEN', KEYS[2], member) or 0
    if size > tonumber(most) then sizes[i] = size end
  end
  local messages, states = {}, redis.call('HMGET', KEYS[3], unpack(members))
  if next(sizes) then
    for i, member in ipairs(members) do messages[i] = sizes[i] and '\30' .. sizes[i] or redis.call('HGET', KEYS[2], member) end
  else messages = redis.call('HMGET', KEYS[2], unpack(members)) end
  for i, member in ipairs(members) do
    local state = states[i] and #states[i] <= tonumber(most) and states[i] or ''
    local n, due = #reply, dues[i] or read_state(state).due
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = member, due, string.byte(member) ~= 31 and messages[i] or '', state
  end
  return reply
end
