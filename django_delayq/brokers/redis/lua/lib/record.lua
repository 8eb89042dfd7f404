-- Read and write messages and states. records.py reads and writes the same bytes.
-- message: 1 US queue US key US flags US sent US scheduled US expires US options RS body
--          Every later format has the same fields up to `scheduled`: see docs/internals/structures.md.
-- state:   token US failures US crashes US due US worker US error, then US interrupted if the stop of a worker cut the lease

-- Return the name of a message's wait set ('queue:key') and its flags; nil if someone else wrote it.
local function read_header(message)
  local queue, key, flags = string.match(cut(message or ''), '^%d+\31([^\31]*)\31([^\31]*)\31([^\31]*)\31')
  if queue then return queue .. ':' .. key, flags end
end

-- Return whether a message is of a later format: it is left to workers that know that.
local function is_newer(message)
  if string.sub(message, 1, 2) == '1\31' then return false end
  return (tonumber(string.match(message, '^(%d+)\31')) or 0) > 1
end

local function with_scheduled(message, due)
  local before, after = string.match(message, '^(%d+\31[^\31]*\31[^\31]*\31[^\31]*\31%d+\31)%d+(.*)$')
  return before and before .. due .. after or message -- someone else wrote it: left as it is
end

local function read_state(state)
  local token, failures, crashes, due, mark, worker, error, interrupted =
    string.match(state or '', '^(%d*)\31(%d+)\31(%d+)\31([^\31]*)\31(!?)([^\31]*)\31([^\31]*)\31?(.*)$')
  if mark == '!' then interrupted = '1' end -- as versions wrote it that did not have the field
  return { token = token or '', failures = tonumber(failures or 0), crashes = tonumber(crashes or 0), due = due or '',
           worker = worker or '', error = error or '', interrupted = interrupted or '' }
end

-- Return whether the token proves the lease of a state. It does not use read_state, because it is called for every message.
local function holds(state, token)
  return state and string.sub(state, 1, #token + 1) == token .. '\31'
end

local function write_state(s)
  local last = s.interrupted ~= '' and '\31' .. s.interrupted or ''
  return table.concat({ s.token, s.failures, s.crashes, s.due, s.worker, s.error }, '\31') .. last
end
