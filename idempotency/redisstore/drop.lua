-- Forgets a message that nobody runs; see message.lua and owner.lua.
-- KEYS[5] the owner's heartbeat; with KEYS[6] left out where it does not count
-- KEYS[6] the caller's heartbeat
-- ARGV[3] the claim as the caller has read it
-- ARGV[4] 1 where the owner is known to be gone
-- ARGV[5] the caller's heartbeat as it was last acknowledged
-- ARGV[6] what that has left to live, in ms, as long as it is fresh
-- Returns 1, 0 where somebody runs it, or 2 where it is not as the caller has read.
local m = redis.call('HMGET', KEYS[2], 'session', 'ends')
if redis.call('GET', KEYS[1]) ~= ARGV[3] or (m[1] or ARGV[2]) ~= ARGV[2] then
  return 2
end
if string.sub(ARGV[3], 1, 1) == 'S' and now < tonumber(m[2] or 0) and ARGV[4] ~= '1'
  and not (KEYS[5] and dead(KEYS[5], KEYS[6], ARGV[5], ARGV[6])) then
  return 0
end
redis.call('DEL', KEYS[1])
forget()
return 1
