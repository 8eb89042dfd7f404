-- uses: guard clock record sets bury reclaim trim epoch
-- reclaim: running -> ready, for leases that ran out; an at-most-once message -> error. And forgets old errors.
-- KEYS  1 running 2 msg 3 state 4 suspect 5 error 6 keys 7 timer 8 count 9 epoch 10.. wait sets
-- ARGV  1 lease in ms 2 channel 3 what the caller's clock expects `now` to be, or ''
--       4 how long errors are kept, in ms 5 how many
-- Gives now, how many were reclaimed, those buried (id, header, failures, why: one after the other), ids without a body, due
-- suspects, next lease end or -1, errors dropped, whose data these are, were when last seen, and were when their alarms were
-- last rebuilt, and why a write that needs memory was refused, or ''; then names of wait sets to call again with: what
-- belongs there was left alone.
probe({ 1, 4, 5, 6 }, { 2, 3, 7, 8, 9 })
local sets, missing, reclaimed, buried, ghosts = own_wait_sets(10), {}, 0, {}, {}
local here, epoch = identity(), redis.call('HMGET', KEYS[9], 'identity', 'rebuilt', 'jumped', 'upkept', 'grace')
local stored = redis.pcall('HSET', KEYS[9], 'identity', here, 'upkept', now)
local refused = type(stored) == 'table' and stored.err or ''
if refused ~= '' then
  redis.call('HDEL', KEYS[9], '') -- a write that needs no memory lets the next one pass when memory is full
  redis.call('HSET', KEYS[9], 'identity', here, 'upkept', now)
end
local seen, grace, lease = ARGV[3] ~= '', tonumber(epoch[5] or '') or 0, tonumber(ARGV[1])
-- 3 s: the call may have been repeated for 2 s since its caller looked at its clock.
local jumped = seen and now - ARGV[3] > 3000 and now - (tonumber(epoch[3] or '') or 0) > 10000
-- Nobody got through, its caller no more than others: Redis hung, and who is alive could not renew. Or its caller is slow:
-- so a lease lies between two graces.
local hung = seen and now - (tonumber(epoch[4] or '') or now) > math.max(2000, lease / 3) and now - grace > lease
if jumped or hung then -- holders may renew first
  grace = now + lease
  redis.call('HSET', KEYS[9], 'jumped', now, 'grace', grace)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * ARGV[1], '+inf', 'LIMIT', 0, 1000)) do
  redis.call('ZADD', KEYS[1], now + ARGV[1], id) -- the clock went back: no lease is that long
end
local lapsed = now >= grace and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000) or {}
for _, id in ipairs(lapsed) do
  local outcome, header, failures, why = reclaim(sets, id)
  if outcome == 'reclaimed' then reclaimed = reclaimed + 1
  elseif outcome == 'ghost' then ghosts[#ghosts + 1] = id
  elseif outcome == 'buried' then
    for _, part in ipairs({ id, header, failures, why }) do buried[#buried + 1] = part end
  elseif outcome then missing[#missing + 1] = outcome end
end
local from = #lapsed > 0 and #lapsed < 1000 and now + 1 or '-inf' -- what is left of these is not for this version
local next_end = redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local dropped = trim(KEYS[5], KEYS[2], KEYS[3], KEYS[8], ARGV[4], ARGV[5])
return { now, reclaimed, buried, ghosts, redis.call('ZCOUNT', KEYS[4], '-inf', now), tonumber(next_end or -1), dropped, here,
  epoch[1] or '', epoch[2] or '', refused, unpack(missing) }
