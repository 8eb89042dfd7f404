-- Check leases. KEYS  1 running

-- Return the end of a lease as text, as callers get it; nil if there is no lease. Someone else may have written any number.
local function lease_end(id)
  local score = redis.call('ZSCORE', KEYS[1], id)
  return score and string.format('%.0f', math.max(tonumber(score), 0))
end

-- Return whether the token proves the lease. `lapsed` is '', or the end of a lease that ran out: it must still end then,
-- because a renewal keeps the token.
local function is_held(id, state, token, lapsed)
  return state.token == token and (lapsed == '' or lease_end(id) == lapsed)
end

-- Return 1 if a lease may be ended without a finish or a cancel, else the answer of requeue.lua that says why not.
local function ending(again, id, held, state)
  if not held then return 0 end
  if state.cancel ~= '' then return state.cancel end
  return redis.call('HEXISTS', again, 'k' .. id) == 1 and 2 or 1
end
