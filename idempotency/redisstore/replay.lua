-- Leaves a dead message waiting; see message.lua.
-- ARGV[3] names the wish
-- Returns 1, also where the wish was the last one, 0 where the message is not dead,
-- -1 where the key is free, or 2 where it has no message of the session.
local claim = redis.call('GET', KEYS[1])
local m = redis.call('HMGET', KEYS[2], 'session', 'replayed')
local state = claim and string.sub(claim, 1, 1)
if not claim or state == 'D' and not m[1] then
  return -1
elseif state == 'C' or state == 'R' then
  return 0
elseif m[1] ~= ARGV[2] then
  return 2
elseif m[2] == ARGV[3] then
  return 1
elseif state ~= 'D' then
  return 0
end
local keep, wait = terms(KEYS[2])
redis.call('SET', KEYS[1], 'W' .. string.sub(claim, 2), 'PX', keep)
redis.call('HSET', KEYS[2], 'replayed', ARGV[3], 'due', text(now), 'attempts', 0, 'cause', '')
join(now, wait)
touch(keep)
return 1
