-- The time of the server in ms, which decides whether something is due.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_up = clock[2] % 1000 > 0 and now + 1 or now -- due times are rounded up, so that nothing is early

-- Read a due time: '+n' is n ms from now; anything else is epoch ms, and a past time means now.
local function due_from(text)
  if string.sub(text, 1, 1) == '+' then return now_up + tonumber(text) end
  return math.max(tonumber(text), now)
end
