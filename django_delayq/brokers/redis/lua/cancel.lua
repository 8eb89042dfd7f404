-- uses: record sets waiting
-- cancel: pending|ready -> cancelled.
-- KEYS  1 msg 2 state 3 keys 4 count 5 suspect 6 running 7 timer 8.. wait sets
-- ARGV  the ids
-- Gives per id 1 cancelled, 0 not waiting, or the name of a wait set to call again with (nothing was changed then).
probe({ 3, 5, 6 }, { 1, 2, 4 })
return each_waiting(1, remove('cancelled'))
