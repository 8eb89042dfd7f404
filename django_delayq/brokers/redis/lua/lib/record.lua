-- Read and write messages and states. records.py reads and writes the same bytes.
-- message: 1 US queue US key US flags US sent US scheduled US expires US options RS body
--          Every later format has the same fields up to `scheduled`: see docs/internals/structures.md.
-- state:   token US failures US crashes US due US worker US error, then US interrupted ('1' if the stop of a worker cut the lease),
--          US cancel ('<when> <who>' if somebody asked to cancel it while it runs), US progress; empty fields at the end are left out

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

-- Write a message with a new due time in its header, if someone else did not write it. One that was too large to be read stays as
-- it is: it fails when it is due.
local function write_scheduled(msg, id, message, due)
  if message == TOO_LARGE then return end
  local before, after = string.match(message, '^(%d+\31[^\31]*\31[^\31]*\31[^\31]*\31%d+\31)%d+(.*)$')
  redis.call('HSET', msg, id, before and before .. due .. after or message)
end

-- Return the name of the wait set that a message belongs to; nil if someone else wrote it. One that was too large to be read is
-- searched for in all wait sets of its shard, which has the key `msg`.
local function wait_set_of(msg, id, message)
  if message ~= TOO_LARGE then return (read_header(message)) end
  local tag = string.match(msg, '^{[^}]*}:')
  for _, name in ipairs(redis.call('ZRANGE', tag .. 'keys', 0, -1)) do
    if type(redis.pcall('ZSCORE', tag .. 'wait:' .. name, id)) == 'string' then return cut(name) end
  end
end

local function read_state(state)
  local token, failures, crashes, due, mark, worker, error, interrupted =
    string.match(state or '', '^(%d*)\31(%d+)\31(%d+)\31([^\31]*)\31(!?)([^\31]*)\31([^\31]*)\31?(.*)$')
  local flag, cancel, progress = string.match(interrupted or '', '^([^\31]*)\31?([^\31]*)\31?(.*)$')
  interrupted = flag
  if not string.match(cancel or '', '^%d+ ') then cancel = '' end -- someone else wrote it
  if mark == '!' then interrupted = '1' end -- as versions wrote it that did not have the field
  return { token = token or '', failures = tonumber(failures or 0), crashes = tonumber(crashes or 0), due = due or '',
           worker = worker or '', error = error or '', interrupted = interrupted or '', cancel = cancel or '', progress = progress or '' }
end

-- Return whether the token proves the lease of a state. It does not use read_state, because it is called for every message.
local function holds(state, token)
  return state and string.sub(state, 1, #token + 1) == token .. '\31'
end

local function write_state(s)
  local last = { s.interrupted, s.cancel or '', s.progress or '' }
  local rest = string.gsub('\31' .. table.concat(last, '\31'), '\31+$', '')
  return table.concat({ s.token, s.failures, s.crashes, s.due, s.worker, s.error }, '\31') .. rest
end
