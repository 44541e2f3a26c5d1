-- Values whose life has only become longer: written here, one row a commit, and into `state` later, many at a time. An
-- event of one of very many visitors would otherwise write a page that no other event of its commit writes.
CREATE TABLE renewal (
    number INTEGER PRIMARY KEY,
    entries TEXT NOT NULL   -- JSON: [[key, value, expires], …]; one whose value is another by now counts for nothing
);
