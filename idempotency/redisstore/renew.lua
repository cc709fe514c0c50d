-- Makes a lease start anew.
-- KEYS[1] the claim
-- ARGV[1] how the value begins while the caller holds it
-- ARGV[2] lease in ms
-- Returns 1, 0 where the key is not the caller's, or 2 where it is and has a stored
-- message.
local head = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1)
if head ~= ARGV[1] then
  return head == 'S' .. string.sub(ARGV[1], 2) and 2 or 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
