-- Read and write the hash `again`: sends that were merged into a message, or kept until its run ends. records.py reads it too.
-- m<id>  sent US first US merged: of the message that was sent at `sent`
-- k<id>  token US due US first US merged US max_wait RS message: kept until the run of that token ends

-- Return when the first of the sends was that a waiting message stands for, and how many were merged into it.
local function read_merged(again, id, message)
  local own = string.match(cut(message or ''), '^%d+\31[^\31]*\31[^\31]*\31[^\31]*\31(%d+)\31')
  local sent, first, merged = string.match(read_own_state(again, 'm' .. id) or '', '^(%d+)\31(%d+)\31(%d+)$')
  if own and sent == own then return tonumber(first), tonumber(merged) end
  return tonumber(own or '') or now, 0
end

local function write_merged(again, id, sent, first, merged)
  redis.call('HSET', again, 'm' .. id, string.format('%.0f\31%.0f\31%.0f', sent, first, merged))
end

-- Return what is kept until the run of a token ends; nil if there is nothing.
local function read_kept(again, id, token, most)
  local head, message = string.match(read_message(again, 'k' .. id, most) or '', '^([^\30]*)\30(.*)$')
  local of, due, first, merged, max_wait = string.match(head or '', '^(%d+)\31(%d+)\31(%d+)\31(%d+)\31(%d*)$')
  if of == token then
    return { due = tonumber(due), first = tonumber(first), merged = tonumber(merged), max_wait = max_wait, message = message }
  end
end

-- Return when a message is due whose first send was at `first`: `bounded` in core/kept.py.
local function bounded(due, first, max_wait)
  if max_wait == '' then return due end
  return math.max(math.min(due, first + tonumber(max_wait)), now)
end

-- Keep a send until the run of a token ends, in place of the one that was kept before. Return when it is due.
local function keep(again, id, token, due, max_wait, message, most)
  local before = read_kept(again, id, token, most)
  local first = before and before.first or now
  due = bounded(due, first, max_wait)
  local head = string.format('\31%.0f\31%.0f\31%.0f\31', due, first, before and before.merged + 1 or 0)
  redis.call('HSET', again, 'k' .. id, token .. head .. max_wait .. '\30' .. message)
  return due
end
