-- Finishes the claim of a stored message, or gives it back, and forgets the
-- message; see held.lua.
-- ARGV[4] the record; empty: the claim is given back
-- ARGV[5] record window in ms
-- ARGV[6] what is left of the window, in ms, for an absent key; 0 or less: nothing
-- Returns 1, also where the caller has done so before, or 0 where the key is not
-- the caller's.
local window = ARGV[5]
if state == '' then
  window = ARGV[6]
  if ARGV[4] ~= '' and tonumber(window) <= 0 then
    return 0
  end
elseif own and state == 'R' and ARGV[4] ~= '' then
  return 1
elseif not own or state ~= 'S' and state ~= 'C' then
  return 0
end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[4], 'PX', window)
end
forget()
return 1
