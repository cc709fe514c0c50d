-- A key's row is found by the first 16 bytes of its SHA-256: half the size of
-- most keys, and without a second tree for row numbers.
CREATE TABLE claims (
  id          BLOB PRIMARY KEY,
  key         TEXT NOT NULL,
  state       INTEGER NOT NULL, -- 0 in flight, 1 recorded
  token       TEXT NOT NULL,    -- of the owner, or of who recorded it
  fingerprint BLOB NOT NULL,    -- 16 bytes, all zero: none
  deadline    INTEGER NOT NULL, -- of the lease or the record window, in Unix milliseconds
  outcome     BLOB              -- of a record
) STRICT, WITHOUT ROWID;

CREATE INDEX claims_by_deadline ON claims (deadline);

-- What Ping writes and reads back.
CREATE TABLE probe (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  n  INTEGER NOT NULL
) STRICT;

INSERT INTO probe VALUES (1, 0);

-- 1: written while SQLite stood in for a better store, which has not been told
-- yet. Only then is there anything in the index.
ALTER TABLE claims ADD COLUMN uncarried INTEGER NOT NULL DEFAULT 0;

CREATE INDEX claims_uncarried ON claims (state, id, deadline) WHERE uncarried = 1;
