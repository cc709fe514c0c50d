-- Writes the record of a message that ran while the server was away.
-- KEYS[1] the claim
-- ARGV[1] how the value begins while the caller holds it
-- ARGV[2] how the value begins once the caller has recorded it (same length)
-- ARGV[3] the record, which begins with ARGV[2]
-- ARGV[4] record window in ms
-- Returns 0, 1 where another owner had claimed or recorded the key, -1 where the
-- key holds no claim and stays as it is, or 2 where it has a stored message.
local head = redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1)
if head == ARGV[2] then
  return 0
end
local state = string.sub(head, 1, 1)
if state == 'R' then
  return 1
elseif state == 'W' or state == 'S' or state == 'D' then
  return 2
elseif state ~= '' and state ~= 'C' then
  return -1
end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
if state == '' or head == ARGV[1] then
  return 0
end
return 1
