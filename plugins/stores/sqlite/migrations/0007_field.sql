-- Fields, one row each: an entry of hundreds changes by one or two, and a commit writes only those. The entry's row in
-- `state` has '{}' in `fields` then. Fields that an older program wrote there, as JSON, move here with their next change.
CREATE TABLE field (
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    at INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (key, name)
) WITHOUT ROWID;
-- Triggers, so that no statement can leave the fields of an entry behind. Only entries with fields pay for them.
CREATE TRIGGER state_delete AFTER DELETE ON state WHEN OLD.fields IS NOT NULL BEGIN
    DELETE FROM field WHERE key = OLD.key;
END;
CREATE TRIGGER state_update AFTER UPDATE ON state WHEN OLD.fields IS NOT NULL AND NEW.fields IS NULL BEGIN
    DELETE FROM field WHERE key = OLD.key;
END;
