-- The members of sets. One row each: a set of hundreds changes by one or two.
CREATE TABLE member (
    key TEXT NOT NULL,
    member TEXT NOT NULL,
    at INTEGER NOT NULL,
    expires INTEGER,      -- the last millisecond of its life
    PRIMARY KEY (key, member)
) WITHOUT ROWID;
