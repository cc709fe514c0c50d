-- Says which messages are to be looked at, and keeps them from other callers for
-- a while: two that ask at once are told different ones.
-- KEYS[1] the index
-- ARGV[1] how many that wait
-- ARGV[2] how many that run
-- ARGV[3] for how long the former are kept from others, in ms
-- ARGV[4] and the latter
-- Returns the time in ms, and the messages, the longest due first, each followed
-- by what the index says of it.

-- Forgets the dead whose time is over; a bounded number, since all may end at once.
local over = redis.call('ZRANGE', KEYS[1], text(DEAD), text(DEAD + now), 'BYSCORE', 'LIMIT', 0, 100)
if #over > 0 then
  redis.call('ZREM', KEYS[1], unpack(over))
end
local found = {text(now)}
local function add(from, limit, hold)
  local range = redis.call('ZRANGE', KEYS[1], text(from), text(from + now), 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  for i = 1, #range, 2 do
    redis.call('ZADD', KEYS[1], text(from + now + hold), range[i])
    found[#found + 1], found[#found + 2] = range[i], range[i + 1]
  end
end
add(0, ARGV[1], ARGV[3])
add(RUNNING, ARGV[2], ARGV[4])
return found
