-- Servers that do not answer, and for how many looks in a row. Additive.
-- depends: 0006.operators

CREATE TABLE scm.server_failures (
    instance    text        NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('gitlab', 'svn')),
    error_code  text        NOT NULL,
    error       text        NOT NULL CHECK (length(error) <= 2000),
    failures    integer     NOT NULL DEFAULT 1 CHECK (failures > 0),
    failed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    observed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (instance, kind)
);
COMMENT ON TABLE scm.server_failures IS 'Servers of which the latest look of a changes sensor got no usable answer; the row goes when they answer again.';
COMMENT ON COLUMN scm.server_failures.instance IS 'The server, as in scm.repos.';
COMMENT ON COLUMN scm.server_failures.kind IS 'gitlab or svn: one host may be both.';
COMMENT ON COLUMN scm.server_failures.error_code IS 'How the latest look failed.';
COMMENT ON COLUMN scm.server_failures.error IS 'One redacted line about it.';
COMMENT ON COLUMN scm.server_failures.failures IS 'Looks in a row that failed.';
COMMENT ON COLUMN scm.server_failures.failed_at IS 'When the first of them failed.';
COMMENT ON COLUMN scm.server_failures.observed_at IS 'When the latest of them failed.';

ALTER TABLE scm.sync_hints ADD COLUMN failures integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN scm.sync_hints.failures IS 'Looks in a row that failed; 0 where the latest one did not.';
