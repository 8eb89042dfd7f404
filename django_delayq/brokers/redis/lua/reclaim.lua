-- uses: guard clock cut record sets held trim epoch
-- Do what is due by time alone: list the messages whose leases ran out (core/transitions.py decides what becomes of them, and
-- requeue and bury write it), make alarms ready again whose leases ran out, and drop old failed messages.
-- KEYS  1 running 2 msg 3 state 4 suspect 5 error 6 keys 7 timer 8 count 9 epoch 10.. wait sets of alarms
-- ARGV  1 lease in ms 2 channel 3 the `now` that the caller expects by its own clock, or ''
--       4 for how many ms failed messages are kept 5 how many at most
--       6 the most bytes of a message that is read 7 1 if the server left a call of the caller unanswered within a lease, else 0
-- Returns now; how many alarms are ready again; a flat list of five values per message (id, end of the lease, wait set or '' if
-- someone else wrote the message, header, state); ids without a body; how many suspects are due; the next end of a lease or -1;
-- how many failed messages were dropped; the identity of the data (lib/epoch.lua), and the one at the last call; the error of a
-- write that needs memory, or ''; then the names of wait sets whose alarms were left alone (call again with them in KEYS).
probe({ 1, 4, 5, 6 }, { 2, 3, 7, 8, 9 })
local sets, missing, rung, lapsed, without_body = own_wait_sets(10), {}, 0, {}, {}
local here, epoch = identity(), redis.call('HMGET', KEYS[9], 'identity', 'jumped', 'upkept', 'grace')
local stored = redis.pcall('HSET', KEYS[9], 'identity', here, 'upkept', now)
local refused = type(stored) == 'table' and stored.err or ''
if refused ~= '' then
  redis.call('HDEL', KEYS[9], '') -- if memory is full, Redis allows other writes after one that needs no memory
  redis.call('HSET', KEYS[9], 'identity', here, 'upkept', now)
end
local seen, grace, lease = ARGV[3] ~= '', tonumber(epoch[4] or '') or 0, tonumber(ARGV[1])
if not (grace <= now + 10 * lease) then grace = 0 end -- someone else wrote it, or the clock went back
-- How late this call is: it may have been repeated for 2 s, or have waited in a server that hung.
local late = seen and now - ARGV[3] or 0
local jumped = late > 3000 and now - (tonumber(epoch[2] or '') or 0) > 10000
-- For long no worker has maintained this shard, not even this caller: Redis may have hung, so that no worker could renew. Or
-- this caller alone was slow. So there is at least a lease between two graces, unless it is known that Redis hung.
local idle, is_late = now - (tonumber(epoch[3] or '') or now), late > lease / 3
local hung = idle > math.max(2000, lease / 3) and (ARGV[7] == '1' or is_late or (seen and now - grace > lease))
if jumped or hung then -- let holders renew before their leases are ended
  grace = now + lease
  redis.call('HSET', KEYS[9], 'jumped', now, 'grace', grace)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + 10 * ARGV[1], '+inf', 'LIMIT', 0, 1000)) do
  redis.call('ZADD', KEYS[1], now + ARGV[1], id) -- no lease is that long: the clock went back
end
-- Renewals may have waited with a late call, and come after it. The next call ends what has run out.
local ran_out = now >= grace and not is_late and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000) or {}
for _, id in ipairs(ran_out) do
  local is_ours = #id <= MOST_TEXT
  local queue, key, pk = string.match(is_ours and id or '', '^\31([^\31]*)\31([^\31]*)(\31.*)$')
  local name, message = queue and queue .. ':' .. key, is_ours and not queue and read_message(KEYS[2], id, ARGV[6])
  if name and sets[name] then -- an alarm: it needs no decision
    redis.call('ZREM', KEYS[1], id)
    redis.call('ZADD', sets[name], 'LT', now, pk)
    note_scheduled(KEYS[6], KEYS[7], ARGV[2], name, now)
    rung = rung + 1
  elseif name then
    if sets[name] == nil then missing[#missing + 1] = name end -- false: someone else has a key of this name
  elseif not message then
    redis.call('ZREM', KEYS[1], id)
    without_body[#without_body + 1] = cut(id)
  elseif not is_newer(message) then
    local state = write_state(read_state(read_own_state(KEYS[3], id))) -- empty if someone else wrote it
    local head = string.match(cut(message), '^[^\30]*')
    for _, part in ipairs({ id, lease_end(id), read_header(message) or '', head, state }) do lapsed[#lapsed + 1] = part end
  end
end
local from = #ran_out > 0 and #ran_out < 1000 and now + 1 or '-inf' -- the caller, or workers of a later version, end these
local next_end = redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local dropped = trim(KEYS[5], KEYS[2], KEYS[3], KEYS[8], ARGV[4], ARGV[5])
return { now, rung, lapsed, without_body, redis.call('ZCOUNT', KEYS[4], '-inf', now), tonumber(next_end or -1), dropped, here,
  cut(epoch[1] or ''), refused, unpack(missing) }
