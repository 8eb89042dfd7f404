-- Answer a call that was repeated after a lost reply: under the number that its slot saw last, it gets the first answer.
local function answered(slot, number)
  local last = redis.call('GET', slot)
  if last then
    last = cmsgpack.unpack(last)
    if last[1] == number then return last[2] end
  end
end

local function remember(slot, number, answer)
  redis.call('SET', slot, cmsgpack.pack({ number, answer }), 'EX', 60)
end
