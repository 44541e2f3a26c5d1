-- The bytes that fields need in the file, with their keys. A large row has pages of its own, which are never full.
ALTER TABLE field ADD COLUMN content INTEGER GENERATED ALWAYS AS
    (length(CAST(key AS BLOB)) + length(CAST(name AS BLOB)) + length(CAST(value AS BLOB))) VIRTUAL;
ALTER TABLE field ADD COLUMN size INTEGER GENERATED ALWAYS AS
    (CASE WHEN content > 980 THEN 700 + 4096 * ((content + 3600) / 4092) ELSE content + content / 4 + 30 END) VIRTUAL;
ALTER TABLE totals ADD COLUMN fields INTEGER NOT NULL DEFAULT 0;
UPDATE totals SET fields = (SELECT coalesce(sum(size), 0) FROM field);
-- Triggers, so that no statement can forget the total. Only requests with traits pay for them.
CREATE TRIGGER field_insert AFTER INSERT ON field BEGIN
    UPDATE totals SET fields = fields + NEW.size;
END;
CREATE TRIGGER field_update AFTER UPDATE ON field BEGIN
    UPDATE totals SET fields = fields + NEW.size - OLD.size;
END;
CREATE TRIGGER field_delete AFTER DELETE ON field BEGIN
    UPDATE totals SET fields = fields - OLD.size;
END;
