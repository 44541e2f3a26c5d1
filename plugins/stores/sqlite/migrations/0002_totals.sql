CREATE TABLE totals (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    records INTEGER NOT NULL,
    bytes INTEGER NOT NULL   -- as ingestd.journal.size_of counts them: 32 beside the body
);
INSERT INTO totals (id, records, bytes) SELECT 1, count(*), coalesce(sum(length(body) + 32), 0) FROM journal;
-- Triggers, so that no statement that changes the journal can forget the totals; each costs less than a microsecond.
CREATE TRIGGER journal_insert AFTER INSERT ON journal BEGIN
    UPDATE totals SET records = records + 1, bytes = bytes + length(NEW.body) + 32;
END;
CREATE TRIGGER journal_delete AFTER DELETE ON journal BEGIN
    UPDATE totals SET records = records - 1, bytes = bytes - length(OLD.body) - 32;
END;
CREATE TRIGGER journal_update AFTER UPDATE OF body ON journal BEGIN
    UPDATE totals SET bytes = bytes + length(NEW.body) - length(OLD.body);
END;
