-- Whose data these are: this run of this server (or '' for what it does not tell). Asked in the step that uses it, because
-- a server may be another one, or the same without its data, from one call to the next.
local function identity()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local replication = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
  return (run or '') .. ':' .. (replication or '')
end
