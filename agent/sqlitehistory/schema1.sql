-- All times are in Unix microseconds.
CREATE TABLE sessions (
  id      INTEGER PRIMARY KEY,
  name    TEXT NOT NULL UNIQUE,
  fence   INTEGER NOT NULL, -- the newest
  created INTEGER NOT NULL,
  used    INTEGER NOT NULL  -- from when its time counts
) STRICT;

CREATE INDEX sessions_by_use ON sessions (used);

-- A turn is both of its rows, so that there is never one without the other.
-- Texts are long: with row numbers a page of the table holds the short ones
-- alone, and looking for a key or trimming reads no text.
CREATE TABLE turns (
  id      INTEGER PRIMARY KEY, -- rises within a session
  session INTEGER NOT NULL,    -- of which sessions has the id
  key     TEXT NOT NULL,       -- of the message
  user_text        TEXT NOT NULL,
  user_prompt      TEXT NOT NULL,
  user_cut         INTEGER NOT NULL,
  user_time        INTEGER NOT NULL,
  assistant_text   TEXT NOT NULL,
  assistant_prompt TEXT NOT NULL,
  assistant_cut    INTEGER NOT NULL,
  assistant_time   INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX turns_by_key ON turns (session, key);
CREATE INDEX turns_in_order ON turns (session, id);

-- What Ping writes and reads back.
CREATE TABLE probe (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  n  INTEGER NOT NULL
) STRICT;

INSERT INTO probe VALUES (1, 0);
