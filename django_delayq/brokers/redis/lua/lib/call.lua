-- Find the answer to a call that is repeated after its reply was lost: its cell has it under the number of the call.
-- Whatever else is in the cell, someone else wrote: it is no answer, and is written over.
local function answered(cell, number)
  local last = redis.pcall('GET', cell)
  if type(last) == 'string' then
    local is_read, kept = pcall(cmsgpack.unpack, last)
    if is_read and type(kept) == 'table' and kept[1] == number then return kept[2] end
  end
end

-- Keep the answer to a call for a minute, in case it is repeated.
local function remember(cell, number, answer)
  redis.call('SET', cell, cmsgpack.pack({ number, answer }), 'EX', 60)
end
