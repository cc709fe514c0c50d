-- Takes a claim over whose owner is gone, or tells how long its lease lasts.
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
if #KEYS > 1 then
  -- No heartbeat means a dead owner only while the server kept receiving them.
  -- One that froze, and carries this out when it thaws, has let those of living
  -- owners run out. Then the caller's own is stale as well, or a later one that
  -- waited in front of this, and is not the one that was acknowledged before.
  local fresh = redis.call('GET', KEYS[3]) == ARGV[4] and redis.call('PTTL', KEYS[3]) >= tonumber(ARGV[5])
  if not fresh or redis.call('EXISTS', KEYS[2]) == 1 then
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 then
      return tonumber(ARGV[3])
    end
    return math.max(left, 1)
  end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return -1
