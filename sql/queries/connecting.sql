-- Statements of sync_pipeline/database/connecting.py: connecting to a PostgreSQL server: what of its
-- address may be shown, and why a connection failed.

-- name: is_direct
SELECT current_setting(%(name)s, TRUE) IS NOT DISTINCT FROM '1'
