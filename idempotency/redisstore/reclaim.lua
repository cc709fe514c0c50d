-- Takes a claim over whose owner is gone, or tells how long its lease lasts; see
-- owner.lua.
-- KEYS[1] the claim
-- KEYS[2] the owner's heartbeat; with KEYS[3] left out where the owner is known to be gone
-- KEYS[3] the caller's heartbeat
-- ARGV[1] how the value begins while the owner holds it
-- ARGV[2] the caller's claim
-- ARGV[3] the caller's lease in ms
-- ARGV[4] the caller's heartbeat as it was last acknowledged
-- ARGV[5] what that has left to live, in ms, as long as it is fresh
-- Returns -1 where the claim is the caller's now, 0 where it is not the
-- owner's any more, or what is left of the owner's lease in ms.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return 0
end
if #KEYS > 1 and not dead(KEYS[2], KEYS[3], ARGV[4], ARGV[5]) then
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then
    return tonumber(ARGV[3])
  end
  return math.max(left, 1)
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return -1
