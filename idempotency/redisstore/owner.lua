-- Stands before the scripts that take claims over, and is the start of each.

-- Reports whether an owner is dead: it has no heartbeat under the key owner. That
-- proves something only while the server kept receiving them. One that froze, and
-- carries this out when it thaws, has let those of living owners run out. Then the
-- caller's own is stale as well, or a later one that waited in front of this, and
-- is not the one that was acknowledged before: text, with fresh ms left to live.
local function dead(owner, own, text, fresh)
  if redis.call('GET', own) ~= text or redis.call('PTTL', own) < tonumber(fresh) then
    return false
  end
  return redis.call('EXISTS', owner) == 0
end
