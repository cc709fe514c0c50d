-- Begins a turn; see enter.lua.
-- Returns the fields of the session and their values, or nothing where a later
-- turn has begun.
if not enter() then
  return {}
end
return redis.call('HGETALL', KEYS[1])
