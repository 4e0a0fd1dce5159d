-- Statements of sync_pipeline/ledger/configurations.py: the configurations that jobs were made and claimed
-- with: ``scm.configurations``.

-- name: keep
-- Each configuration once, written by the first process that uses it.
INSERT INTO scm.configurations (config_hash, settings, code_version)
VALUES (%(config_hash)s, %(settings)s, %(code_version)s)
ON CONFLICT DO NOTHING

-- name: get
-- For a person who looks at a job.
SELECT settings FROM scm.configurations WHERE config_hash = %(config_hash)s
