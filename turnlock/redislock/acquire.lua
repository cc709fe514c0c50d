-- Takes the lock of a session, or a place in its queue.
-- KEYS[1] the lock: <token>|<fence>
-- KEYS[2] the queue: a sorted set of tokens by their arrival in µs
-- KEYS[3] the replicas that wait: a hash of ids with the time, in ms, until which their tokens count
-- KEYS[4] the session's last fence
-- ARGV[1] the caller's token, which begins with its replica's id and a dot
-- ARGV[2] the id of the caller's replica
-- ARGV[3] how long the lock lives, in ms
-- ARGV[4] how long a waiting replica's tokens count without another call, in ms
-- ARGV[5] how long the fence is remembered, in ms
-- ARGV[6] a fence that the new one has to exceed
-- ARGV[7] 1 if the caller is the first of those that wait in its replica; others only keep their place
-- Returns {fence, 0} where the lock is the caller's, or {0, ms}: nobody else has to be
-- expected before that time, unless the holder gives the lock back.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local ms = math.floor(now / 1000)

local function grant()
  local fence = math.max(now, ARGV[6] + 1, (redis.call('GET', KEYS[4]) or 0) + 1)
  local text = string.format('%.0f', fence)
  redis.call('SET', KEYS[4], text, 'PX', ARGV[5])
  redis.call('SET', KEYS[1], ARGV[1] .. '|' .. text, 'PX', ARGV[3])
  return {fence, 0}
end

local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. '|' then
  return {tonumber(string.sub(held, #ARGV[1] + 2)), 0} -- an answer was lost
end
if not held and ARGV[7] == '1' and redis.call('EXISTS', KEYS[2]) == 0 then
  return grant()
end

redis.call('HSET', KEYS[3], ARGV[2], string.format('%.0f', ms + ARGV[4]))
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  -- Not the time alone: a clock that was set back must not let anybody pass.
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  local place = math.max(now, (last[2] or 0) + 1)
  redis.call('ZADD', KEYS[2], string.format('%.0f', place), ARGV[1])
end
for i = 2, 3 do
  -- Replicas may be configured with different lives; none cuts another's short.
  if redis.call('PTTL', KEYS[i]) < 2 * ARGV[4] then
    redis.call('PEXPIRE', KEYS[i], 2 * ARGV[4])
  end
end
if held then
  return {0, math.max(redis.call('PTTL', KEYS[1]), 1)}
end

while true do
  local front = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  local replica = string.match(front, '^[^.]*')
  local counts = tonumber(redis.call('HGET', KEYS[3], replica) or 0)
  if replica == ARGV[2] then
    if ARGV[7] ~= '1' then
      return {0, tonumber(ARGV[4])}
    end
    -- Tokens of one replica may reach the server in another order than their
    -- callers came in: the caller takes the front place, and who had it the caller's.
    if front ~= ARGV[1] then
      redis.call('ZADD', KEYS[2], redis.call('ZSCORE', KEYS[2], ARGV[1]), front)
    end
    redis.call('ZREM', KEYS[2], ARGV[1])
    return grant()
  end
  if counts > ms + 10 * ARGV[4] then
    -- Written before the clock was set back: it counts for one life more.
    counts = ms + tonumber(ARGV[4])
    redis.call('HSET', KEYS[3], replica, string.format('%.0f', counts))
  end
  if counts > ms then
    return {0, counts - ms}
  end
  redis.call('ZREM', KEYS[2], front) -- of a replica that is gone
end
