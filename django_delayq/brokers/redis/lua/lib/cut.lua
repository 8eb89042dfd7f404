-- Someone else may have written a text of any size, so none is returned without a bound.
-- HEADER_BYTES in shards.py: no name or header of ours is longer, and no state of a running message.
local MOST_TEXT = 8192

-- Cut a text, or each text of a list, to `most` bytes. What is left of a name that was too long names nothing.
local function cut(reply, most)
  if type(reply) == 'string' and #reply > (most or MOST_TEXT) then return string.sub(reply, 1, most or MOST_TEXT) end
  if type(reply) == 'table' then
    for i, part in ipairs(reply) do reply[i] = cut(part, most) end
  end
  return reply
end

-- Stands for a text that was too large to be read. It is no message and no state of ours.
local TOO_LARGE = '\30'

-- Read a field of a hash, unless it has more than `most` bytes: reading one of 40 MiB takes Redis half a second, in which it
-- answers nobody.
local function read_field(key, field, most)
  return redis.call('HSTRLEN', key, field) > most and TOO_LARGE or redis.call('HGET', key, field)
end

-- Read a message, to look at its header or to move it. Up to 1 MiB that is done even if OPTIONS['max_data'] lets through only
-- `most` bytes: it may have let through more when the message was sent.
local function read_message(key, id, most)
  return read_field(key, id, math.max(tonumber(most), 1048576))
end

-- Read the state of a message that was not buried.
local function read_own_state(key, id)
  return read_field(key, id, MOST_TEXT)
end
