-- uses: guard clock record sets back
-- release: running -> ready, in its old place; with a delay -> pending, due after it. It was not started, or a stop
-- interrupted it: nothing is counted.
return put_back('released', function(state, delay)
  if delay > 0 then return now_up + delay end
  return tonumber(state.due) or now
end)
