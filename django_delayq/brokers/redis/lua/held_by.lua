-- uses: guard cut record held
-- List messages that dead workers hold. core/transitions.py decides what becomes of them, and requeue and bury write it.
-- KEYS  1 running 2 msg 3 state
-- ARGV  1 how many leases to skip 2 how many to read 3 the most bytes of a message that is read 4.. the workers' names
-- Returns how many leases were read, and a flat list of five values per message: id, end of the lease, wait set ('' if someone
-- else wrote the message), header, state. Alarms are left out: their leases need not be ended.
probe({ 1 }, { 2, 3 })
local dead, held = {}, {}
for i = 4, #ARGV do dead[ARGV[i]] = true end
local ids = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
for _, id in ipairs(ids) do
  local state = #id <= MOST_TEXT and read_state(read_own_state(KEYS[3], id))
  local message = state and dead[string.match(state.worker, '^(.-) *$')] and read_message(KEYS[2], id, ARGV[3])
  if message and not is_newer(message) then
    local head = string.match(cut(message), '^[^\30]*')
    for _, part in ipairs({ id, lease_end(id), read_header(message) or '', head, write_state(state) }) do held[#held + 1] = part end
  end
end
return { #ids, held }
