-- Gives a claim back.
-- KEYS[1] the claim
-- ARGV[1] how the value begins while the caller holds it
-- Returns 1, also where the key is absent, 0 where it is not the caller's, or 2 where
-- it is and has a stored message.
local head = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1)
if head == '' then
  return 1
elseif head ~= ARGV[1] then
  return head == 'S' .. string.sub(ARGV[1], 2) and 2 or 0
end
redis.call('DEL', KEYS[1])
return 1
