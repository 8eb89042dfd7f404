-- Whose lease it is. KEYS  1 running

-- The end of a lease as a caller is told it, nothing for none. Someone else may have written any number.
local function lease_end(id)
  local score = redis.call('ZSCORE', KEYS[1], id)
  return score and string.format('%.0f', math.max(tonumber(score), 0))
end

-- Whether it is the one that the token proves. Of one that ran out, `lapsed` is its end ('' otherwise), which it must
-- still have: a renewal keeps the token.
local function is_held(id, state, token, lapsed)
  return state.token == token and (lapsed == '' or lease_end(id) == lapsed)
end
