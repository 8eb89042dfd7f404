-- uses: guard numbers record sets call waiting
-- purge: pending|ready -> gone.
-- KEYS, ARGV and answer as in cancel.lua.
return each_waiting(3, remove('purged'))
