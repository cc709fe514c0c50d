-- Writes the record of a stored message that ran while the server was away; see
-- held.lua.
-- ARGV[4] the record
-- ARGV[5] record window in ms
-- Returns 0, 1 where another owner had the claim, or 2 where the key has no
-- message of the session.
local stored = state == 'W' or state == 'S' or state == 'D'
if not stored or (redis.call('HGET', KEYS[2], 'session') or ARGV[2]) ~= ARGV[2] then
  return 2
end
redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
forget()
return own and 0 or 1
