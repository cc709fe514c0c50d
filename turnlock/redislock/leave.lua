-- Gives a lock back, or a place in the queue, and wakes the next one.
-- KEYS[1] the lock
-- KEYS[2] the queue
-- KEYS[3] the replicas that wait
-- KEYS[4] the session's last fence
-- ARGV[1] the caller's token
-- ARGV[2] how the channel of a replica begins; its id follows
-- ARGV[3] what to say on it
-- ARGV[4] the replica that is woken when nobody waits; empty: none
-- ARGV[5] how long the fence is remembered, in ms
-- ARGV[6] the fence of the caller's lock; 0: it only has a place
-- Returns 1 where the lock was the caller's, also if it has been given back before,
-- else 0.
local answer = 0
-- Giving back raises the last fence. So a renewal that comes late does not take the
-- lock back, see renew, and the same call repeated is known.
local function raise(fence)
  redis.call('SET', KEYS[4], string.format('%.0f', fence + 1), 'PX', ARGV[5])
end
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. '|' then
  redis.call('DEL', KEYS[1])
  raise(tonumber(string.sub(held, #ARGV[1] + 2)))
  held, answer = false, 1
elseif not held and ARGV[6] ~= '0' then
  local own, last = tonumber(ARGV[6]), tonumber(redis.call('GET', KEYS[4]) or 0)
  if last == own then
    raise(own)
  elseif last == own + 1 then
    answer = 1
  end
end
local wake = ARGV[4]
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  local clock = redis.call('TIME')
  local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  while not held do
    local front = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not front then
      redis.call('DEL', KEYS[3])
      break
    end
    local replica = string.match(front, '^[^.]*')
    if tonumber(redis.call('HGET', KEYS[3], replica) or 0) > ms then
      wake = replica
      break
    end
    redis.call('ZREM', KEYS[2], front)
  end
end
if wake ~= '' and not held then
  redis.call('PUBLISH', ARGV[2] .. wake, ARGV[3])
end
return answer
