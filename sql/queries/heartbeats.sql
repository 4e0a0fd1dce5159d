-- Statements of sync_pipeline/ledger/heartbeats.py. They record when each sensor, schedule and loop last
-- finished a tick.

-- name: beat
-- Records the end of a tick.
INSERT INTO scm.heartbeats (name, beat_at, seconds, outcome, every_seconds)
VALUES (%(name)s, clock_timestamp(), %(seconds)s, %(outcome)s, %(every)s)
ON CONFLICT (name) DO UPDATE
   SET beat_at = EXCLUDED.beat_at, seconds = EXCLUDED.seconds, outcome = EXCLUDED.outcome,
       every_seconds = EXCLUDED.every_seconds

-- name: all
-- Reads all heartbeats, for the reports and for the probes of containers.
SELECT name, beat_at, seconds, outcome, extract(epoch FROM clock_timestamp() - beat_at)::float8 AS age,
       every_seconds AS every
  FROM scm.heartbeats
 ORDER BY name

-- name: delete
-- Deletes the heartbeat of a loop that will not tick again.
DELETE FROM scm.heartbeats WHERE name = %(name)s
