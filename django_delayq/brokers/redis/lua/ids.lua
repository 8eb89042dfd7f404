-- A look: a page of the ids of all that has a body, without the bodies.
-- KEYS  1 msg
-- ARGV  1 cursor 2 about how many
-- Gives the next cursor ('0' at the end), and the ids and the entries of buried messages.
local page, ids = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]), {}
for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
return { page[1], ids }
