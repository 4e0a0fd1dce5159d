-- Forgets the limits of tenants and the configurations; jobs keep their hash.
DELETE FROM scm.sync_rate_limits WHERE starts_with(endpoint_class, 'tenant:');
COMMENT ON COLUMN scm.sync_rate_limits.endpoint_class IS 'What takes from the bucket: all requests to a GitLab (all), all commands to an SVN server (svn), or one kind of request to a GitLab that the server limits on its own.';
DROP TABLE scm.configurations;
COMMENT ON COLUMN scm.sync_jobs.config_hash IS 'Hash of the settings that shaped it.';

-- Forgets the circuit breakers of pools.
DELETE FROM scm.breaker_events WHERE scope = 'pool';
DELETE FROM scm.breakers WHERE scope = 'pool';
ALTER TABLE scm.breakers
    DROP CONSTRAINT breakers_scope_check,
    ADD CONSTRAINT breakers_scope_check CHECK (scope IN ('global', 'instance', 'tenant'));
ALTER TABLE scm.breaker_events
    DROP CONSTRAINT breaker_events_scope_check,
    ADD CONSTRAINT breaker_events_scope_check CHECK (scope IN ('global', 'instance', 'tenant'));
COMMENT ON COLUMN scm.breakers.scope IS 'global, instance (one server) or tenant.';
COMMENT ON COLUMN scm.breakers.key IS 'The server or the tenant; empty for global.';
