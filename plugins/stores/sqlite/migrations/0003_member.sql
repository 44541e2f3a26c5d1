-- The members of sets. One row each: a set of hundreds changes by one or two. In the order in which they came: what is
-- pushed in one commit lies on few pages, whichever sets it belongs to.
CREATE TABLE member (
    number INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    member TEXT NOT NULL,
    at INTEGER NOT NULL,
    expires INTEGER      -- the last millisecond of its life
);
CREATE INDEX member_key ON member (key);
