-- uses: guard cut record sets call waiting
-- cancel: pending|ready -> cancelled.
-- KEYS  1 msg 2 state 3 keys 4 count 5 suspect 6 running 7 timer 8 call cell 9 again 10.. wait sets
-- ARGV  1 number 2 the most bytes of a message that is read 3.. the ids
-- Returns per id: 1 cancelled, 0 not waiting, or the name of a wait set (nothing was changed: call again with it in KEYS).
return each_waiting(3, remove('cancelled'))
