-- Forgets the turns of a session, readable or not. Its fence stays, and so does
-- its time.
-- KEYS[1] the session: a hash
-- ARGV[1] how long a session lives that has no end, in ms
-- Returns 1, or 0 where there is no session.
local kept = redis.call('HMGET', KEYS[1], 'fence', 'created', 'used')
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
for i = 1, 3 do
  if not tonumber(kept[i]) then
    error('WRONGTYPE the hash has no fence or no times', 0)
  end
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  left = ARGV[1]
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'fence', kept[1], 'created', kept[2], 'used', kept[3], 'first', 1, 'next', 1)
redis.call('PEXPIRE', KEYS[1], left)
return 1
