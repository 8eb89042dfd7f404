-- uses: cut
-- Find which store owns the alarms: the one that was recorded first since the data were last lost.
-- KEYS  1 meta
-- ARGV  1 the store to record if there is none, or ''
-- Returns the store, or '' if there is none.
local store = redis.call('HGET', KEYS[1], 'store')
if store or ARGV[1] == '' then return cut(store or '') end
redis.pcall('HSET', KEYS[1], 'store', ARGV[1]) -- may fail if memory is full: a later call records it
return ARGV[1]
