-- The table of a store, laid out as the eventsourcing library reads it, and what keeps its rows as they are.
-- Run again, it changes nothing.

CREATE TABLE IF NOT EXISTS stored_events (
    originator_id uuid NOT NULL,
    originator_version bigint NOT NULL,
    topic text NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (originator_id, originator_version)
);

-- To compress a run, much of it digests and signatures, costs more than it saves.
ALTER TABLE stored_events ALTER COLUMN state SET STORAGE EXTERNAL;

CREATE OR REPLACE FUNCTION stored_events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows are append-only';
END
$$;

CREATE OR REPLACE TRIGGER stored_events_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON stored_events
    FOR EACH STATEMENT EXECUTE FUNCTION stored_events_append_only();

-- Whatever a session says that it is (session_replication_role).
ALTER TABLE stored_events ENABLE ALWAYS TRIGGER stored_events_append_only;
