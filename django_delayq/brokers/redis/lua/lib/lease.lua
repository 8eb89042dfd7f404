-- Lease messages and alarms for claim and claim_suspect. KEYS  1 running 2 msg 3 state 4 keys 5 timer 6 call cell 7 count
-- Redis keeps a zset of up to 128 members of up to 64 bytes as a list, which it scans for each member that is added. So for
-- MANY members a WIDE one is added for a moment, which makes Redis convert the list.
local MANY, WIDE = 20, string.rep('\31', 65)

-- Lease the members in `described` (lib/describe.lua), which were just taken out of their sets. Drop ids without a body.
local function lease(described, token, ends, worker)
  local running, states, ids = {}, {}, {}
  local fresh, by = token .. '\0310\0310\31', '\31' .. worker .. '\31'
  for i = 1, #described, 4 do
    local id, message = described[i], described[i + 2]
    local newer = is_newer(message) -- then it is not leased, but described, so that the worker can warn about it
    if message ~= '' and not newer then
      local state, due = described[i + 3], described[i + 1]
      if state == '' then state = fresh .. due .. by -- most messages have no state yet
      else
        state = read_state(state)
        state.token, state.due, state.worker, state.interrupted = token, due, worker, ''
        state = write_state(state)
      end
      states[#states + 1], states[#states + 2] = id, state
    end
    if not newer and (message ~= '' or string.byte(id) == 31) then
      running[#running + 1], running[#running + 2], ids[#ids + 1] = ends, id, id
    elseif not newer then
      count(KEYS[7], 'without body', 1)
    end
  end
  if #ids >= MANY then
    redis.call('ZADD', KEYS[1], ends, WIDE, unpack(running))
    redis.call('ZREM', KEYS[1], WIDE)
  elseif #ids > 0 then
    redis.call('ZADD', KEYS[1], unpack(running))
  end
  if #states > 0 then redis.call('HSET', KEYS[3], unpack(states)) end
  remember(KEYS[6], token, ids)
end
