-- uses: guard clock cut record sets call describe lease
-- claim: lease one due suspect of these wait sets.
-- KEYS  1 running 2 msg 3 state 4 suspect 5 (none) 6 call cell 7 count
-- ARGV  1 token, which is the number of the call too 2 lease in ms 3 worker 4 the most bytes of a message that is read
--       5.. the names of the wait sets
-- Returns now, then four values for the message (lib/describe.lua), if there is one.
local ids = answered(KEYS[6], ARGV[1])
if ids then return { now, unpack(describe(ids, {}, ARGV[4], {})) } end
probe({ 1, 4 }, { 2, 3, 7 })
local wanted = {}
for i = 5, #ARGV do wanted[ARGV[i]] = true end
local due = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1000)
for i = 1, #due, 2 do
  local message = read_message(KEYS[2], due[i], ARGV[4])
  if (message == TOO_LARGE or wanted[read_header(message) or '']) and not is_newer(message) then
    local described = describe({ due[i] }, { due[i + 1] }, ARGV[4], {})
    redis.call('ZREM', KEYS[4], due[i])
    lease(described, ARGV[1], now + ARGV[2], ARGV[3])
    return { now, unpack(described) }
  end
end
return { now }
