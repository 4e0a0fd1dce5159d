-- Statements of sync_pipeline/ledger/sessions.py. They end writing transactions whose process no longer
-- responds.

-- name: end
-- Ends the sessions of a writer. They have our own role, so every role may end them.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name = %(writer)s
   AND pid <> pg_backend_pid()
