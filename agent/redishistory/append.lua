-- Writes a turn, unless the session has its key already; see enter.lua.
-- ARGV[4] how many turns are kept
-- ARGV[5] the key of the turn's message
-- ARGV[6] the rows of the turn
-- Returns 1, or 0 where a later turn has begun.
if not enter() then
  return 0
end
if redis.call('HSETNX', KEYS[1], 'turn:' .. ARGV[5], ARGV[6]) == 0 then
  return 1
end
local after = redis.call('HINCRBY', KEYS[1], 'next', 1)
redis.call('HSET', KEYS[1], 'at:' .. after - 1, ARGV[5])
local first = tonumber(redis.call('HGET', KEYS[1], 'first'))
while first < after - ARGV[4] do
  local key = redis.call('HGET', KEYS[1], 'at:' .. first)
  if not key then -- nobody here counted so; a server must not count on to the end
    first = after - ARGV[4]
    break
  end
  redis.call('HDEL', KEYS[1], 'at:' .. first, 'turn:' .. key)
  first = first + 1
end
redis.call('HSET', KEYS[1], 'first', first)
return 1
