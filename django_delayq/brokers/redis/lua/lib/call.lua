-- Find the answer to a call that is repeated after its reply was lost: its cell has it under the number of the call.
local function answered(cell, number)
  local last = redis.call('GET', cell)
  if last then
    last = cmsgpack.unpack(last)
    if last[1] == number then return last[2] end
  end
end

-- Keep the answer to a call for a minute, in case it is repeated.
local function remember(cell, number, answer)
  redis.call('SET', cell, cmsgpack.pack({ number, answer }), 'EX', 60)
end
