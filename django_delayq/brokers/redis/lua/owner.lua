-- Say whose alarms these are: those of the store that was named first after the last loss.
-- KEYS  1 meta
-- ARGV  1 the store to name where none is, or ''
-- Gives the store, '' for none.
local store = redis.call('HGET', KEYS[1], 'store')
if store or ARGV[1] == '' then return store or '' end
redis.pcall('HSET', KEYS[1], 'store', ARGV[1]) -- may fail: memory is full; the next heartbeat names it
return ARGV[1]
