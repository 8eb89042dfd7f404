-- Bury a message. It is kept under the entry 'id US token', so that its id is free again at once.
local function bury(msg, state_key, error_key, totals, id, state, detail)
  local entry = id .. '\31' .. (state.token ~= '' and state.token or now)
  local message = redis.call('HGET', msg, id)
  redis.call('HDEL', msg, id)
  redis.call('HDEL', state_key, id)
  redis.call('HSET', msg, entry, message)
  redis.call('HSET', state_key, entry, write_state(state) .. '\30' .. detail)
  redis.call('ZADD', error_key, now, entry)
  count(totals, 'buried', 1)
end
