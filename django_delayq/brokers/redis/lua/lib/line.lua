-- The line before the permits of a limit: when the last that was refused asks again, and since when none was free.
-- See core/limits.py, Permits.
local function read_line(key)
  local last, since = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  return { last = tonumber(last or 0), since = tonumber(since or 0) }
end

-- Put one more in the line. Gives for how many ms it waits.
local function wait_in(line)
  if line.since == 0 or line.last + 1000 <= now then line.since = now end
  local none_free = now - line.since
  local step = math.min(math.max(math.floor(none_free / 10), 10), 250)
  local last, length = math.max(line.last, now), math.min(math.max(none_free / 4, 2000), 60000)
  line.last = math.min(last + (last + step <= now + length and step or 1), now + 3600000)
  return line.last - now
end

local function write_line(key, line)
  local left = line.last + 1000 - now
  if left > 0 then redis.call('SET', key, line.last .. ' ' .. line.since, 'PX', left) end
end
