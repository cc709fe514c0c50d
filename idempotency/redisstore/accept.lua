-- Stores a message unless its key is taken; see message.lua.
-- ARGV[3] the caller's token
-- ARGV[4] the claim
-- ARGV[5] until the message is due, in ms
-- ARGV[6] the caller's lease in ms, where it runs the message already; 0: nobody does
-- ARGV[7] how long the message is kept, in ms
-- ARGV[8] how long it may wait for an earlier one, in ms
-- ARGV[9] and all that follow: fields of the message and their values
-- Returns {1} where it is stored; {2, fields} where it was before, by this token;
-- or {0, the claim that is met, what is left of it in ms}.
if not redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[7], 'NX') then
  local claim = redis.call('GET', KEYS[1])
  local state = string.sub(claim, 1, 1)
  if state ~= 'W' and state ~= 'S' and state ~= 'D' then
    return {0, claim, redis.call('PTTL', KEYS[1])}
  end
  local met = redis.call('HMGET', KEYS[2], 'terms', 'due', 'ends')
  if met[1] and string.match(met[1], '([^ ]*)$') == ARGV[3] then
    return {2, redis.call('HGETALL', KEYS[2])}
  end
  local left = (state == 'S' and met[3] or met[2] or now) - now
  return {0, claim, math.ceil(left)}
end
local due = now + ARGV[5]
local function write()
  return redis.call('HSET', KEYS[2], 'due', text(due), unpack(ARGV, 9))
end
if write() < (#ARGV - 6) / 2 then -- the key had a message whose time is over
  redis.call('DEL', KEYS[2])
  write()
end
redis.call('PEXPIRE', KEYS[2], ARGV[7])
join(due, tonumber(ARGV[8]))
if ARGV[6] ~= '0' then
  redis.call('HSET', KEYS[2], 'ends', text(now + ARGV[6]))
  watch(ARGV[1], RUNNING + now)
end
outlive(tonumber(ARGV[7]))
return {1}
