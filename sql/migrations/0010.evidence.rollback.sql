-- Forgets where batches were read. Batches, counts and facts stay.
ALTER TABLE scm.sync_batches
    DROP COLUMN seconds,
    DROP COLUMN calls,
    DROP COLUMN owed,
    DROP COLUMN read_time,
    DROP COLUMN last_key,
    DROP COLUMN first_key,
    DROP COLUMN position;
