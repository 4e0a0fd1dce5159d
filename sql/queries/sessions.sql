-- Statements of sync_pipeline/ledger/sessions.py: writing transactions, and the end of those whose process
-- no longer answers.

-- name: end
-- Only sessions of our own role, which every role may end.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name = %(writer)s
   AND pid <> pg_backend_pid()
