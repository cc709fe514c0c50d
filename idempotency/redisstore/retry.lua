-- Gives a claim back and leaves the message waiting; see held.lua.
-- ARGV[4] until it is due, in ms
-- ARGV[5] why
-- ARGV[6] what to count: 0, or -1 where the attempt was none
-- Returns 1, also where the caller has done so before, or 0 where the claim is not
-- the caller's.
if own and state == 'S' then
  local keep, due = terms(KEYS[2]), now + ARGV[4]
  local attempts = redis.call('HINCRBY', KEYS[2], 'attempts', ARGV[6])
  redis.call('HSET', KEYS[2], 'due', text(due), 'cause', ARGV[5])
  redis.call('SET', KEYS[1], 'W' .. string.sub(value, 2), 'PX', keep)
  touch(keep)
  -- Not later than it is forgotten: others are behind it.
  watch(ARGV[1], math.min(due, now + keep))
  if attempts > 0 and ARGV[2] ~= '' then
    wake(redis.call('ZRANGE', KEYS[4], 1, 1)[1])
  end
end
return own and (state == 'S' or state == 'W' or state == 'D') and 1 or 0
