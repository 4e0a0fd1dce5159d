-- The rate that a server bears: what was found, why, and for how long it counts. Permits that processes took
-- ahead. No table is rewritten.
-- depends: 0017.graph

ALTER TABLE scm.sync_rate_limits
    ADD COLUMN tuned_at timestamptz,
    ADD COLUMN rate_reason text,
    ADD COLUMN announced_rate double precision,
    ADD COLUMN announced_at timestamptz,
    ADD COLUMN refused_rate double precision,
    ADD COLUMN bundled integer NOT NULL DEFAULT 0,
    ADD COLUMN bundled_until timestamptz;

COMMENT ON COLUMN scm.sync_rate_limits.rate IS
    'Requests per second that flow in. It is halved after a refusal and rises slowly after it. Else it is the rate that was found, or that of the settings.';
COMMENT ON COLUMN scm.sync_rate_limits.changed_at IS
    'Time from which a rate that a refusal lowered rises; NULL if none did.';
COMMENT ON COLUMN scm.sync_rate_limits.tuned_at IS
    'Latest time at which response times raised, lowered or confirmed the rate; NULL if it is that of the settings.';
COMMENT ON COLUMN scm.sync_rate_limits.rate_reason IS
    'Why the rate last changed, in one line.';
COMMENT ON COLUMN scm.sync_rate_limits.announced_rate IS
    'Requests per second that we take of the limit that the server announces; NULL if it announced none.';
COMMENT ON COLUMN scm.sync_rate_limits.announced_at IS
    'Time of the latest such announcement, which counts for ten minutes.';
COMMENT ON COLUMN scm.sync_rate_limits.refused_rate IS
    'The rate at the latest refusal, if it was above that of the settings. For an hour the rate stays below.';
COMMENT ON COLUMN scm.sync_rate_limits.bundled IS
    'Permits that processes took ahead until bundled_until. The bucket holds that many fewer, so that the burst is kept.';
COMMENT ON COLUMN scm.sync_rate_limits.bundled_until IS
    'Time until which permits that were taken ahead may be used.';
