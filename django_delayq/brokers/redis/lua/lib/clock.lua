-- The time by which everything is due, in ms.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_up = clock[2] % 1000 > 0 and now + 1 or now -- due times are rounded up: early by 1 ms is early

-- '+n' is n ms from now; anything else is an instant, and the past means now.
local function due_from(text)
  if string.sub(text, 1, 1) == '+' then return now_up + tonumber(text) end
  return math.max(tonumber(text), now)
end
