-- Read the line of a limit: when the request that was refused last may ask again, and since when no permit was free.
-- See `Permits` in core/limits.py.
local function read_line(key)
  local last, since = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  return { last = tonumber(last or 0), since = tonumber(since or 0) }
end

-- Put one more request in the line. Return after how many ms it may ask again.
local function wait_in(line)
  if line.since == 0 or line.last + 1000 <= now then line.since = now end
  local none_free = now - line.since
  local step = math.min(math.max(math.floor(none_free / 10), 10), 250)
  local last, length = math.max(line.last, now), math.min(math.max(none_free / 4, 2000), 60000)
  line.last = math.min(last + (last + step <= now + length and step or 1), now + 300000)
  return line.last - now
end

local function write_line(key, line)
  local left = line.last + 1000 - now
  if left > 0 then redis.call('SET', key, line.last .. ' ' .. line.since, 'PX', left) end
end
