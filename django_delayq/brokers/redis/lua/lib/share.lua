-- Append to `described` the members that a claim may take of one wait set. Return how many, and whether it can take no more of
-- the set now, because of its count or its idle slots. Return nil for a key of another type, which someone else has written.
local function share(set, most, idle_slots, most_bytes, described)
  local due = redis.pcall('ZRANGEBYSCORE', set, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  if due.err and not string.find(due.err, 'WRONGTYPE') then error(due.err) end
  if due.err then return nil end
  local members, dues, name = {}, {}, set_name(set)
  for i = 1, #due, 2 do
    local alarm = string.byte(due[i]) == 31 and '\31' .. string.gsub(name, ':', '\31', 1)
    members[#members + 1], dues[#dues + 1] = (alarm or '') .. due[i], due[i + 1]
  end
  local before, newer = #described, 0
  describe(members, dues, most_bytes, described)
  for i = 1, #members do
    local message = described[before + 4 * i - 1]
    if is_newer(message) then -- put behind the others for 5 s; ZREM first, because memory may be full
      redis.call('ZREM', set, due[2 * i - 1])
      redis.call('ZADD', set, now + 5000, members[i])
      newer = newer + 1
    elseif i - newer > idle_slots and string.byte(message, #name + 4) == 111 then
      -- The message has the flag 'o' (at most once), and would have to wait for a slot. Flags follow '1 US queue US key US'.
      -- This does not use read_header, because it is checked for most messages.
      for n = #described, before + 4 * i - 3, -1 do described[n] = nil end
      return i - 1 - newer, true
    end
  end
  return #members - newer, #members >= most
end
