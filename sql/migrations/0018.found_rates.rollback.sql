COMMENT ON COLUMN scm.sync_rate_limits.rate IS 'Requests per second that flow in: never above the setting, halved when the server says 429, slowly raised after.';
COMMENT ON COLUMN scm.sync_rate_limits.changed_at IS 'Time from which the lowered rate rises; NULL if it equals the setting.';
ALTER TABLE scm.sync_rate_limits
    DROP COLUMN tuned_at,
    DROP COLUMN rate_reason,
    DROP COLUMN announced_rate,
    DROP COLUMN announced_at,
    DROP COLUMN refused_rate,
    DROP COLUMN bundled,
    DROP COLUMN bundled_until;
