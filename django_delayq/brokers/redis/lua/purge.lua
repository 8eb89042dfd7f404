-- uses: record sets waiting
-- purge: pending|ready -> gone.
-- KEYS, ARGV and answer as in cancel.lua.
probe({ 3, 5, 6 }, { 1, 2, 4 })
return each_waiting(1, remove('purged'))
