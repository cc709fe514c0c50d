-- Makes a lease start anew.
-- KEYS[1] the claim
-- ARGV[1] how the value begins while the caller holds it
-- ARGV[2] lease in ms
-- Returns 1, or 0 where the key is not the caller's.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
