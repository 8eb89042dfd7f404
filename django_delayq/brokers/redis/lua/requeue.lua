-- uses: guard clock cut record sets held
-- requeue: running -> pending, ready or suspect, by a retry, snooze, release, crash or lapse.
-- KEYS  1 running 2 state 3 suspect 4 keys 5 timer 6 count 7 again 8 the wait set
-- ARGV  1 channel; then per message: id, token, facts, error (one line). Facts are separated by commas: when its lease ran out
--       ('' if its holder ends it, which must be so for all messages or for none), 1 for a suspect (else 0), failures, crashes,
--       delay in ms ('' for the due time that it had), due time ('' if the delay says it), 1 if the error is new (else 0), the total that counts it ('' for none)
-- Returns as finish.lua does; or a text on who has asked to cancel the message, where nothing was changed either.
probe({ 1, 3, 4 }, { 2, 5, 6, 7 })
local is_ours = own_wait_sets(8)[set_name(KEYS[8])]
if not is_ours and string.byte(ARGV[4]) == 44 then probe({ 8 }, {}) end -- raises for a holder; leases that ran out are left alone
local reply, totals, first = {}, {}, nil
for i = 2, #ARGV, 4 do
  local id = ARGV[i]
  local lapsed, suspect, failures, crashes, delay, at, is_new, total =
    string.match(ARGV[i + 2], '^(%d*),(%d),(%d+),(%d+),(%d*),(%d*),(%d),(%a*)$')
  local state = read_state(read_own_state(KEYS[2], id))
  local held = is_ours and is_held(id, state, ARGV[i + 1], lapsed)
  local answer = ending(KEYS[7], id, held, state)
  reply[#reply + 1] = answer
  if answer == 1 then
    redis.call('ZREM', KEYS[1], id) -- first, because it frees memory, which may be full
    local due = delay == '' and (tonumber(state.due) or now) or now_up + tonumber(delay)
    if at ~= '' then due = math.max(due, tonumber(at)) end
    redis.call('ZADD', suspect == '1' and KEYS[3] or KEYS[8], due, id)
    state.failures, state.crashes = failures, crashes
    if is_new == '1' then state.error = ARGV[i + 3] end
    state.token, state.due, state.worker, state.interrupted, state.progress = '', '', '', '', ''
    redis.call('HSET', KEYS[2], id, write_state(state))
    totals[total], first = (totals[total] or 0) + 1, math.min(first or due, due)
  end
end
if first then note_scheduled(KEYS[4], KEYS[5], ARGV[1], set_name(KEYS[8]), first) end
for total, n in pairs(totals) do
  if total ~= '' then count(KEYS[6], total, n) end
end
return reply
