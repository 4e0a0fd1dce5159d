-- Statements of sync_pipeline/reports/run_starts.py. They read Dagster runs that failed before they began.

-- name: runs
-- Lists the newest runs that began, or failed before they began. Dagster's times have no zone and are UTC.
SELECT r.run_id, r.status = 'FAILURE' AND r.start_time IS NULL AS never_began,
       r.update_timestamp AT TIME ZONE 'UTC' AS updated_at
  FROM runs AS r
 WHERE r.status IN ('STARTED', 'SUCCESS', 'FAILURE')
   AND r.create_timestamp > (now() AT TIME ZONE 'UTC') - interval '1 day'
 ORDER BY r.id DESC
 LIMIT %(newest)s

-- name: notes
-- Reads the events of one run from Dagster's launcher and run monitor, newest first.
SELECT event
  FROM event_logs
 WHERE run_id = %(run_id)s AND dagster_event_type IN ('ENGINE_EVENT', 'PIPELINE_FAILURE')
 ORDER BY id DESC
 LIMIT 10
