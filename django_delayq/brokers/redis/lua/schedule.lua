-- uses: guard clock sets schedule
-- Hold alarms of one wait set. Of two alarms for one row the earlier one counts.
-- KEYS  1 keys 2 timer 3 the wait set
-- ARGV  1 channel; then per alarm: member (US pk), wait in ms
probe({ 1, 3 }, { 2 })
schedule()
