-- Makes the life of a held lock start anew.
-- KEYS[1] the lock
-- KEYS[2] the session's last fence
-- ARGV[1] the caller's lock: <token>|<fence>
-- ARGV[2] the caller's fence
-- ARGV[3] how long the lock lives, in ms
-- ARGV[4] how long the fence is remembered, in ms
-- Returns 1, or 0 where the lock is not the caller's.
local held = redis.call('GET', KEYS[1])
if held then
  if held ~= ARGV[1] then
    return 0
  end
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  return redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
-- The server has lost the lock. As long as nobody has had it since, which the
-- fence tells, it is still the caller's.
local last = redis.call('GET', KEYS[2])
if last and last ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
