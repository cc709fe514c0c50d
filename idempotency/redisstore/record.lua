-- Finishes a claim.
-- KEYS[1] the claim
-- ARGV[1] how the value begins while the caller holds it
-- ARGV[2] how the value begins once the caller has recorded it (same length)
-- ARGV[3] the record, which begins with ARGV[2]
-- ARGV[4] record window in ms
-- ARGV[5] what is left of the window, in ms, for an absent key; 0 or less: nothing
-- Returns 1, 0 where the key is not the caller's, or 2 where it is and has a stored
-- message.
local head = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1)
local window = ARGV[4]
if head == '' then
  window = ARGV[5]
  if tonumber(window) <= 0 then
    return 0
  end
elseif head == ARGV[2] then
  return 1
elseif head ~= ARGV[1] then
  return head == 'S' .. string.sub(ARGV[1], 2) and 2 or 0
end
redis.call('SET', KEYS[1], ARGV[3], 'PX', window)
return 1
