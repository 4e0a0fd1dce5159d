-- Statements of sync_pipeline/ledger/configurations.py. They store the configurations that jobs were
-- created and claimed with (``scm.configurations``).

-- name: keep
-- Stores a configuration once. The first process that uses it writes it.
INSERT INTO scm.configurations (config_hash, settings, code_version)
VALUES (%(config_hash)s, %(settings)s, %(code_version)s)
ON CONFLICT DO NOTHING

-- name: get
-- Reads a configuration, for the page of a job.
SELECT settings FROM scm.configurations WHERE config_hash = %(config_hash)s
