-- Counts the messages.
-- KEYS[1] the index
-- Returns how many there are, and how many of them wait and are due.
local function count(from, to)
  return redis.call('ZCOUNT', KEYS[1], text(from), text(to))
end
local over = count(DEAD, DEAD + now)
return {count(0, DEAD + RUNNING) - over, count(0, now) + count(BEHIND, BEHIND + now)}
