-- Tell whose lease it is. KEYS  1 running

-- Gives the end of a lease in the form that callers get, nothing for none. Someone else may have written any number.
local function lease_end(id)
  local score = redis.call('ZSCORE', KEYS[1], id)
  return score and string.format('%.0f', math.max(tonumber(score), 0))
end

-- Gives whether it is the lease that the token proves. `lapsed` is the end of one that ran out, '' otherwise. It must still
-- have that end, because a renewal keeps the token.
local function is_held(id, state, token, lapsed)
  return state.token == token and (lapsed == '' or lease_end(id) == lapsed)
end
