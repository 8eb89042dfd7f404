-- uses: guard cut record sets call waiting
-- purge: pending|ready -> gone.
-- KEYS, ARGV and reply as in cancel.lua.
return each_waiting(3, remove('purged'))
