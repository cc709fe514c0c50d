-- What an inbox keeps beside the claim of a message. How the message stands,
-- and all that changes while it waits and runs, is in the row of its claim.
-- Durations are in milliseconds.
CREATE TABLE messages (
  number     INTEGER PRIMARY KEY, -- orders the messages of a session
  id         BLOB NOT NULL,    -- of the claim
  session    TEXT NOT NULL,    -- empty: none
  queued     INTEGER NOT NULL, -- 1: of a session, and waits or runs
  order_wait INTEGER NOT NULL,
  keep       INTEGER NOT NULL,
  lease      INTEGER NOT NULL,
  ttl        INTEGER NOT NULL,
  accepted   TEXT NOT NULL,    -- the token of who stored it
  replayed   TEXT NOT NULL,    -- the id of the last replay
  cause      TEXT NOT NULL,
  body       BLOB NOT NULL,
  reply      BLOB              -- NULL: none
) STRICT;

CREATE INDEX messages_in_order ON messages (session, number) WHERE queued = 1;

-- Further states with a message: 2 runs, 3 waits, 4 dead, 5 a copy. Their
-- deadline is when the message is forgotten. In all others these are NULL.
ALTER TABLE claims ADD COLUMN number INTEGER;   -- of the message
ALTER TABLE claims ADD COLUMN attempts INTEGER;
ALTER TABLE claims ADD COLUMN until INTEGER;    -- the lease ends, or the wait
ALTER TABLE claims ADD COLUMN due INTEGER;      -- when it has to be looked at; NULL: not by itself

CREATE INDEX claims_stored ON claims (state, number, until, deadline) WHERE number IS NOT NULL;

CREATE INDEX claims_due ON claims (due, number) WHERE due IS NOT NULL;
