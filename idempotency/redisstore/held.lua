-- Stands behind message.lua, before the changes by who runs the message.
-- ARGV[3] what follows the state in the claim while it is the caller's
local value = redis.call('GET', KEYS[1]) or ''
local state = string.sub(value, 1, 1)
local own = string.sub(value, 2, #ARGV[3] + 1) == ARGV[3]
