-- Statements of sync_pipeline/database/connecting.py. They check a new connection to a PostgreSQL server.

-- name: is_direct
-- Returns whether the options of the connection reached the server, which some poolers ignore.
SELECT current_setting(%(name)s, TRUE) IS NOT DISTINCT FROM '1'
