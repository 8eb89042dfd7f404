-- uses: guard clock record sets back
-- retry: running -> pending, due again after the delay. A failure; the attempt ended by itself, so no crash is left.
return put_back('retried', function(state, delay, error)
  state.failures, state.crashes, state.error = state.failures + 1, 0, error
  return now_up + delay
end)
