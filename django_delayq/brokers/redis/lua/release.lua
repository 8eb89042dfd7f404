-- uses: guard record sets back
-- release: running -> ready, in its old place. It was not started, or a stop interrupted it: nothing is counted.
return put_back('released', function(state)
  return tonumber(state.due) or now
end)
