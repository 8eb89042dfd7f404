-- Add the alarms in ARGV, from 2 on, to one wait set: member (US pk), wait in ms. Of two for one row the earlier counts.
-- KEYS  1 keys 2 timer 3 the wait set     ARGV  1 channel
local function schedule()
  local first, members = math.huge, {}
  for i = 2, #ARGV, 2 do
    local due = now_up + tonumber(ARGV[i + 1])
    members[i - 1], members[i], first = string.format('%.0f', due), ARGV[i], math.min(first, due)
  end
  redis.call('ZADD', KEYS[3], 'LT', unpack(members))
  note_scheduled(KEYS[1], KEYS[2], ARGV[1], set_name(KEYS[3]), first)
end
