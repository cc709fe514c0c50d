-- 1: written while SQLite stood in for a better store, which has not been told
-- yet. Only then is there anything in the index.
ALTER TABLE claims ADD COLUMN uncarried INTEGER NOT NULL DEFAULT 0;

CREATE INDEX claims_uncarried ON claims (state, id, deadline) WHERE uncarried = 1;
