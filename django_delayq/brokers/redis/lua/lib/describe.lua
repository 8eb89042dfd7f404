-- Describe messages and alarms for claim and claim_suspect. KEYS  2 msg 3 state

-- Append four values per message to `reply`: member, due time, message, state. The member of an alarm names its set:
-- US queue US key US pk.
local function describe(members, dues, reply)
  if #members == 0 then return reply end
  local messages, states = redis.call('HMGET', KEYS[2], unpack(members)), redis.call('HMGET', KEYS[3], unpack(members))
  for i, member in ipairs(members) do
    local n, due = #reply, dues[i] or read_state(states[i]).due
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = member, due, messages[i] or '', states[i] or ''
  end
  return reply
end
