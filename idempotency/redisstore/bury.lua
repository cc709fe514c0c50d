-- Makes the message that runs dead; see held.lua.
-- ARGV[4] why
-- Returns 1, also where the caller has done so before, or 0 where the claim is not
-- the caller's.
if own and state == 'S' then
  bury(KEYS[1], KEYS[2], ARGV[1], value, ARGV[4])
end
return own and (state == 'S' or state == 'W' or state == 'D') and 1 or 0
