-- Answer a call that was repeated after a lost reply: under the number that its cell saw last, it gets the first answer.
local function answered(cell, number)
  local last = redis.call('GET', cell)
  if last then
    last = cmsgpack.unpack(last)
    if last[1] == number then return last[2] end
  end
end

local function remember(cell, number, answer)
  redis.call('SET', cell, cmsgpack.pack({ number, answer }), 'EX', 60)
end
