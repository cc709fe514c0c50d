-- Stands before the scripts about stored messages, and is the start of each.

-- The index has every stored message once: a sorted set of <key> <session>. Its
-- scores are times, in ms of the server's clock; which ones, their range tells.
-- Below the first bound: when a waiting message is to be looked at.
local RUNNING = 1e13 -- the next look at one that runs
local BEHIND = 2e13  -- when one is due that waits behind others of its session
local DEAD = 3e13    -- when a dead one is forgotten

local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000

-- Returns a time with all its digits.
local function text(time)
  return string.format('%.3f', time)
end
