-- Takes a message, or puts it where it belongs in the index; see message.lua and
-- owner.lua.
-- KEYS[5] the claim of the session's first message, as the caller knows it
-- KEYS[6] that message
-- KEYS[7] the owner's heartbeat; with KEYS[8] left out where it does not count
-- KEYS[8] the caller's heartbeat
-- ARGV[3] the claim as the caller has read it
-- ARGV[4] the caller's claim
-- ARGV[5] how long it may run without being looked at, in ms
-- ARGV[6] the key of the session's first message
-- ARGV[7] 1 where the owner is known to be gone
-- ARGV[8] the caller's heartbeat as it was last acknowledged
-- ARGV[9] what that has left to live, in ms, as long as it is fresh
-- Returns {1, buried, fields} where the message is the caller's. Else {0, buried},
-- or {2, buried} where another message may be due because of it. buried is 1
-- where the session's first message has given way.
local claim = redis.call('GET', KEYS[1])
local state = claim and string.sub(claim, 1, 1)
local m = redis.call('HMGET', KEYS[2], 'session', 'due', 'ends', 'attempts')
if m[1] ~= ARGV[2] or state ~= 'W' and state ~= 'S' and state ~= 'D' then
  -- It was kept for its time, or is recorded. The key may have another one.
  if not m[1] and (state == 'W' or state == 'S' or state == 'D') then
    redis.call('DEL', KEYS[1])
  end
  redis.call('ZREM', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
  leave(ARGV[1])
  return {2, 0}
elseif claim == ARGV[4] then -- an answer was lost
  return {1, 0, redis.call('HGETALL', KEYS[2])}
elseif claim ~= ARGV[3] or state == 'D' then
  return {0, 0}
end
local due, ends = tonumber(m[2]), tonumber(m[3])
local keep, wait, lease = terms(KEYS[2])

-- Reports whether the session's first message waits for a retry.
local function retried()
  local first = redis.call('HMGET', KEYS[6], 'session', 'attempts')
  return first[1] == ARGV[2] and tonumber(first[2]) > 0 and redis.call('GETRANGE', KEYS[5], 0, 0) == 'W'
end

local buried = 0
local front = ARGV[2] ~= '' and redis.call('ZRANGE', KEYS[4], 0, 1) or {}
if front[1] and front[1] ~= ARGV[1] then
  if front[1] ~= ARGV[6] then -- since the caller has looked
    watch(ARGV[1], now)
    return {2, 0}
  elseif front[2] ~= ARGV[1] or not retried() then
    watch(ARGV[1], BEHIND + due)
    return {0, 0}
  elseif now < due + wait then
    watch(ARGV[1], due + wait)
    return {0, 0}
  end
  bury(KEYS[5], KEYS[6], ARGV[6], redis.call('GET', KEYS[5]), 'order_wait')
  buried = 1
end

if state == 'W' and now < due then
  -- Not later than it is forgotten: others are behind it.
  watch(ARGV[1], math.min(due, now + redis.call('PTTL', KEYS[1])))
  if tonumber(m[4]) > 0 and front[1] == ARGV[1] then
    wake(front[2])
  end
  return {0, buried}
elseif state == 'S' and now < ends and ARGV[7] ~= '1' and not (KEYS[7] and dead(KEYS[7], KEYS[8], ARGV[8], ARGV[9])) then
  watch(ARGV[1], RUNNING + math.min(ends, now + ARGV[5]))
  return {0, buried}
end
redis.call('SET', KEYS[1], ARGV[4], 'PX', keep)
redis.call('HINCRBY', KEYS[2], 'attempts', 1)
redis.call('HSET', KEYS[2], 'ends', text(now + lease))
redis.call('PEXPIRE', KEYS[2], keep)
watch(ARGV[1], RUNNING + now + math.min(lease, tonumber(ARGV[5])))
outlive(keep)
return {1, buried, redis.call('HGETALL', KEYS[2])}
