-- Keeps a reply with the message that runs; see held.lua.
-- ARGV[4] the reply
-- Returns 1, also where the caller has given the claim back, or 0 where it is not
-- the caller's.
if own and state == 'S' then
  redis.call('HSET', KEYS[2], 'reply', ARGV[4])
  touch((terms(KEYS[2])))
end
return own and (state == 'S' or state == 'W' or state == 'D') and 1 or 0
