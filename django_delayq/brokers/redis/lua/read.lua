-- uses: guard cut
-- Run a command that reads one key, and cut each text of its answer.
-- KEYS  1 the key
-- ARGV  1 to how many bytes 2 the command 3.. its arguments after the key
-- Returns the answer.
return cut(probe_key(ARGV[2], KEYS[1], unpack(ARGV, 3)), tonumber(ARGV[1]))
