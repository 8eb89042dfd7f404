-- uses: record sets call conflict
-- send: none -> pending, for messages of one wait set; for an id that waits already, what on_conflict says.
-- KEYS  1 msg 2 state 3 running 4 suspect 5 keys 6 timer 7 count 8 call slot 9 the wait set
--       10.. the wait sets of ids that wait elsewhere
-- ARGV  1 number 2 on_conflict 3 channel; then per message: id, due, flags, expires US options RS body
-- Gives two values per message: 1 created, 0 not, 2 running, or the name of a wait set to call again with (nothing was
-- changed then); and its due time.
local answer = answered(KEYS[8], ARGV[1])
if answer then return answer end
probe({ 5, 9 }, { 6, 7 }) -- the others: in conflict, or by the first write
local sets, name = wait_sets(9), set_name(KEYS[9])
local queue, key = string.match(name, '^([^:]*):(.*)$')
local head = '1\31' .. queue .. '\31' .. key .. '\31'
local reply, created, first = {}, 0, nil
for i = 4, #ARGV, 4 do
  local id, due = ARGV[i], due_from(ARGV[i + 1])
  local message = head .. ARGV[i + 2] .. '\31' .. now .. '\31' .. due .. '\31' .. ARGV[i + 3]
  local outcome = 1
  if redis.call('HSETNX', KEYS[1], id, message) == 0 then -- the first write: full memory fails here, unchanged
    outcome, due = conflict(ARGV[2], sets, id, due, message)
    if not outcome then
      redis.call('HSET', KEYS[1], id, message)
      outcome = 1
    end
  end
  if outcome == 1 then
    redis.call('ZADD', KEYS[9], due, id)
    created, first = created + 1, math.min(first or due, due)
  end
  reply[#reply + 1], reply[#reply + 2] = outcome, due
end
if created > 0 then
  placed(KEYS[5], KEYS[6], ARGV[3], name, first)
  redis.call('HINCRBY', KEYS[7], 'sent', created)
end
remember(KEYS[8], ARGV[1], reply)
return reply
