-- Stands behind index.lua, before the scripts about one stored message.
-- KEYS[1] the claim
-- KEYS[2] the message: a hash
-- KEYS[3] the index
-- KEYS[4] the session's queue: a sorted set of the keys of its unfinished messages, by number
-- ARGV[1] the message's key
-- ARGV[2] its session; empty: none, and no queue

-- Puts a message of the session into the index.
local function watch(key, score)
  redis.call('ZADD', KEYS[3], text(score), key .. ' ' .. ARGV[2])
end

-- Returns the terms that the message was accepted with: how long it is kept, how
-- long it may wait behind another one, and its lease, all in ms.
local function terms(message)
  local keep, wait, lease = string.match(redis.call('HGET', message, 'terms'), '^(%d+) (%d+) (%d+)')
  return tonumber(keep), tonumber(wait), tonumber(lease)
end

-- Makes the index and the queue outlive a message that is kept for so many ms.
local function outlive(keep)
  for i = 3, ARGV[2] == '' and 3 or 4 do
    if redis.call('PTTL', KEYS[i]) < keep then
      redis.call('PEXPIRE', KEYS[i], string.format('%.0f', 2 * keep))
    end
  end
end

-- Lets the time start anew for which the message is kept.
local function touch(keep)
  redis.call('PEXPIRE', KEYS[1], keep)
  redis.call('PEXPIRE', KEYS[2], keep)
  outlive(keep)
end

-- Has a message looked at now, unless it runs, and so is looked at anyway.
local function wake(key)
  if not key then
    return
  end
  local score = tonumber(redis.call('ZSCORE', KEYS[3], key .. ' ' .. ARGV[2]) or 0)
  if score < RUNNING or score >= BEHIND then
    watch(key, now)
  end
end

-- Takes a message out of the queue and wakes the one whose turn, or whose wait
-- for the first one, begins with that.
local function leave(key)
  if ARGV[2] == '' then
    return
  end
  local front = redis.call('ZRANGE', KEYS[4], 0, 2)
  redis.call('ZREM', KEYS[4], key)
  for i = 1, 2 do
    if front[i] == key then
      wake(front[i + 1])
    end
  end
end

-- Takes the message out of everything but its claim.
local function forget()
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
  leave(ARGV[1])
end

-- Gives the message the last place in the queue. It is due at a time, and may
-- then wait for so many ms behind one that waits for a retry.
local function join(due, wait)
  if ARGV[2] == '' then
    return watch(ARGV[1], due)
  end
  local number = clock[1] * 1000000 + clock[2]
  local last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')
  if last[1] then
    -- Not the time alone: a clock that was set back must not let anybody pass.
    number = math.max(number, last[2] + 1)
    if redis.call('ZSCORE', KEYS[4], ARGV[1]) then
      leave(ARGV[1]) -- a message that had the key before, and has run out
    end
  end
  redis.call('ZADD', KEYS[4], string.format('%.0f', number), ARGV[1])
  local front = last[1] and redis.call('ZRANGE', KEYS[4], 0, 1) or {ARGV[1]}
  if front[1] == ARGV[1] then
    watch(ARGV[1], due)
  elseif front[2] == ARGV[1] then
    watch(ARGV[1], due + wait)
  else
    watch(ARGV[1], BEHIND + due)
  end
end

-- Makes a message of the session dead, which may be another one than ARGV[1].
local function bury(claim, message, key, value, cause)
  local keep = terms(message)
  redis.call('HSET', message, 'cause', cause)
  redis.call('PEXPIRE', message, keep)
  redis.call('SET', claim, 'D' .. string.sub(value, 2), 'PX', keep)
  leave(key)
  watch(key, DEAD + now + keep)
  outlive(keep)
end
