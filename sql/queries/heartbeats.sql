-- Statements of sync_pipeline/ledger/heartbeats.py: when each sensor, schedule and loop last finished a
-- tick, and which of them have fallen silent.

-- name: beat
-- Written at the end of every tick.
INSERT INTO scm.heartbeats (name, beat_at, seconds, outcome, every_seconds)
VALUES (%(name)s, clock_timestamp(), %(seconds)s, %(outcome)s, %(every)s)
ON CONFLICT (name) DO UPDATE
   SET beat_at = EXCLUDED.beat_at, seconds = EXCLUDED.seconds, outcome = EXCLUDED.outcome,
       every_seconds = EXCLUDED.every_seconds

-- name: all
-- Read by the reports and by the probes of containers.
SELECT name, beat_at, seconds, outcome, extract(epoch FROM clock_timestamp() - beat_at)::float8 AS age,
       every_seconds AS every
  FROM scm.heartbeats
 ORDER BY name

-- name: delete
-- What will not tick again and is no loss.
DELETE FROM scm.heartbeats WHERE name = %(name)s
