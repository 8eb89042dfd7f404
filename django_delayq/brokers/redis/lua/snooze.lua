-- uses: guard clock record sets back
-- snooze: running -> pending, due again after the delay. No failure; the attempt ended by itself, so no crash is left.
return put_back('snoozed', function(state, delay)
  state.crashes = 0
  return now_up + delay
end)
