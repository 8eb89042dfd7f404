-- Append to `described` what a claim may take of one wait set. Gives how many, and whether more would find no idle slot;
-- nothing for a key of another type, which is someone else's: skip it.
local function share(set, most, idle_slots, described)
  local due = redis.pcall('ZRANGEBYSCORE', set, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  if due.err and not string.find(due.err, 'WRONGTYPE') then error(due.err) end
  if due.err then return nil end
  local members, dues, name = {}, {}, set_name(set)
  for i = 1, #due, 2 do
    local alarm = string.byte(due[i]) == 31 and '\31' .. string.gsub(name, ':', '\31', 1)
    members[#members + 1], dues[#dues + 1] = (alarm or '') .. due[i], due[i + 1]
  end
  local before, newer = #described, 0
  describe(members, dues, described)
  for i = 1, #members do
    local message = described[before + 4 * i - 1]
    if is_newer(message) then -- behind the others for a while; ZREM first: memory may be full
      redis.call('ZREM', set, members[i])
      redis.call('ZADD', set, now + 5000, members[i])
      newer = newer + 1
    elseif i - newer > idle_slots and string.byte(message, #name + 4) == 111 then
      -- Flagged 'o' (at most once): it must not wait for a slot, and would. Flags follow '1 US queue US key US'. Does not use
      -- read_header, because this is asked for most messages.
      for n = #described, before + 4 * i - 3, -1 do described[n] = nil end
      return i - 1 - newer, true
    end
  end
  return #members - newer, #members >= most
end
