-- Return the identity of the data: this run of this server, and its replication ('' for what the server does not say). It is
-- asked in the script that uses it, because before the next call the server may be replaced, or restarted without its data.
local function identity()
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local replication = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
  return (run or '') .. ':' .. (replication or '')
end
