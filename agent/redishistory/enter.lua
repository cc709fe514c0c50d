-- Stands before begin.lua and append.lua, and is the start of both.
-- KEYS[1] the session: a hash
-- KEYS[2] the index: a sorted set of the sessions by their last use, in µs
-- ARGV[1] the session
-- ARGV[2] the fence of the turn
-- ARGV[3] how long a session outlives the last write to it, in ms

-- Notes the turn as the session's newest, and makes the session if there is
-- none. Returns false, and has changed nothing, where a later turn has begun.
local function enter()
  local newest = redis.call('HGET', KEYS[1], 'fence')
  local known = redis.call('EXISTS', KEYS[1]) == 1
  if known and not tonumber(newest) then
    error('WRONGTYPE the hash has no fence', 0)
  end
  if known and tonumber(ARGV[2]) < tonumber(newest) then
    return false
  end
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local text = string.format('%.0f', now)

  -- The index first: if it is no index, nothing has been written. What it loses
  -- here is bounded, and more than a turn adds.
  redis.call('ZADD', KEYS[2], text, ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  local over = redis.call('ZCOUNT', KEYS[2], '-inf', string.format('%.0f', now - ARGV[3] * 1000))
  if over > 0 then
    redis.call('ZREMRANGEBYRANK', KEYS[2], 0, math.min(over, 20) - 1)
  end

  if not known then
    redis.call('HSET', KEYS[1], 'created', text, 'first', 1, 'next', 1)
  end
  redis.call('HSET', KEYS[1], 'fence', ARGV[2], 'used', text)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return true
end
