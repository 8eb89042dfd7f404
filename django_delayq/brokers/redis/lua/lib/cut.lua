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
