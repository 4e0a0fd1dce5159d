-- Circuit breakers of worker pools, the configurations that jobs ran with, and rate limits of tenants. Additive.
-- depends: 0008.names

ALTER TABLE scm.breakers
    DROP CONSTRAINT breakers_scope_check,
    ADD CONSTRAINT breakers_scope_check CHECK (scope IN ('global', 'instance', 'tenant', 'pool'));
ALTER TABLE scm.breaker_events
    DROP CONSTRAINT breaker_events_scope_check,
    ADD CONSTRAINT breaker_events_scope_check CHECK (scope IN ('global', 'instance', 'tenant', 'pool'));
COMMENT ON COLUMN scm.breakers.scope IS 'global, instance (one server), tenant, or pool (one worker pool).';
COMMENT ON COLUMN scm.breakers.key IS 'The server, tenant or pool; empty for global.';

CREATE TABLE scm.configurations (
    config_hash   text        PRIMARY KEY,
    settings      jsonb       NOT NULL CHECK (jsonb_typeof(settings) = 'object'),
    code_version  text        NOT NULL,
    first_used_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE scm.configurations IS 'Every configuration that a job was made or claimed with, once. It has no secret.';
COMMENT ON COLUMN scm.configurations.config_hash IS 'Start of the SHA-256 of the settings.';
COMMENT ON COLUMN scm.configurations.settings IS 'The numbers, switches and dates among the settings, by name.';
COMMENT ON COLUMN scm.configurations.code_version IS 'Version of this program that used it first.';
COMMENT ON COLUMN scm.configurations.first_used_at IS 'When it was first used.';
COMMENT ON COLUMN scm.sync_jobs.config_hash IS 'Configuration of the latest claim, or that the job was made with; see scm.configurations.';

COMMENT ON COLUMN scm.sync_rate_limits.endpoint_class IS 'What takes from the bucket: all requests to a GitLab (all), all commands to an SVN server (svn), requests for the projects of one tenant (tenant:<name>), or one kind of request to a GitLab that the server limits on its own.';
