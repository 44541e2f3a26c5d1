CREATE TABLE journal (
    position INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused, not even after the newest rows are gone
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE state (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT,       -- either a value
    fields TEXT,      -- or fields, as JSON: {"name": [at, "value"]}
    expires INTEGER   -- the last millisecond of its life; not indexed, since every event would pay for it
) WITHOUT ROWID;
CREATE TABLE cursors (name TEXT PRIMARY KEY NOT NULL, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE control (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,     -- when it was asked, in milliseconds
    request BLOB NOT NULL,   -- what a command beside the daemon asks for, as JSON
    answer TEXT,             -- null until the daemon has dealt with it
    position INTEGER         -- of the last record it appended
);
CREATE TABLE probe (id INTEGER PRIMARY KEY, filler BLOB NOT NULL);
PRAGMA application_id = 0x696e6764; -- "ingd"
