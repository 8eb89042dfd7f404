-- uses: guard cut record sets
-- Check the members of one place for the audit.
-- KEYS  1 msg 2 running 3 suspect 4 error 5 the place (one of 2 to 4, or a wait set)
-- ARGV  1 the most bytes of a message that is read 2.. members that were read from the place or from msg a moment ago
-- Returns two values per member that is wrong: the member, and 'no body', 'no place', 'two places' or 'not its wait set'.
local reply, wait, scores = {}, set_name(KEYS[5]), {}
local ids = { unpack(ARGV, 2) }
for i = 2, wait and 5 or 4 do scores[i] = redis.call('ZMSCORE', KEYS[i], unpack(ids)) end
for n, id in ipairs(ids) do
  local message, places = read_message(KEYS[1], id, ARGV[1]), 0 -- one at a time, because a page of large ones takes much memory
  for _, there in pairs(scores) do
    if there[n] then places = places + 1 end
  end
  local wrong
  if places > 1 then wrong = 'two places'
  elseif places == 1 and not message then wrong = 'no body'
  elseif places == 0 and message then wrong = 'no place'
  elseif places == 1 and wait and scores[5][n] and message ~= TOO_LARGE and read_header(message) ~= wait then
    wrong = 'not its wait set'
  end
  if wrong then reply[#reply + 1], reply[#reply + 2] = id, wrong end
end
return reply
