-- Makes the lease of a message that runs start anew; see held.lua.
-- ARGV[4] lease in ms
-- Returns 1, or 0 where the claim is not the caller's.
if own and state == 'S' then
  redis.call('HSET', KEYS[2], 'ends', text(now + ARGV[4]))
  touch((terms(KEYS[2])))
  return 1
elseif own and state == 'C' then
  return redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 0
