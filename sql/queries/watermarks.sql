-- Statements of sync_pipeline/ledger/watermarks.py. They record the coverage of each asset and the events
-- that changed it.

-- name: register
-- Creates the row of a new asset with its origin and no coverage.
INSERT INTO scm.sync_watermarks (repo_id, job_type, origin_rev, origin_time, head_rev)
VALUES (%(repo_id)s, %(job_type)s, %(origin_rev)s, %(origin_time)s, %(head_rev)s)
ON CONFLICT (repo_id, job_type) DO NOTHING
RETURNING repo_id

-- name: snapshot_event
-- Records the whole coverage as an event (register, set, reset), from which a replay starts.
INSERT INTO scm.sync_watermark_events
       (repo_id, job_type, direction, covered_revs, covered_time, origin_rev, origin_time,
        watermark_rev, watermark_time, generation, actor, reason, code_version)
SELECT repo_id, job_type, %(direction)s, covered_revs, covered_time, origin_rev, origin_time,
       watermark_rev, watermark_time, generation, %(actor)s, %(reason)s, %(code_version)s
  FROM scm.sync_watermarks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: get
-- Reads everything that is known about one asset.
SELECT * FROM scm.sync_watermarks WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: missing
-- Computes the parts of a window that are not covered.
SELECT %(revs)s::int8multirange - covered_revs AS revs, %(period)s::tstzmultirange - covered_time AS period
  FROM scm.sync_watermarks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: extend
-- Adds a window to the coverage, with an event if it grew. The caller holds the row lock.
WITH grown AS (
    UPDATE scm.sync_watermarks
       SET covered_revs = covered_revs + %(revs)s::int8multirange,
           covered_time = covered_time + %(period)s::tstzmultirange,
           updated_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
       AND NOT (covered_revs @> %(revs)s::int8multirange AND covered_time @> %(period)s::tstzmultirange)
    RETURNING *
)
INSERT INTO scm.sync_watermark_events
       (repo_id, job_type, direction, added_revs, added_time, origin_rev, origin_time,
        watermark_rev, watermark_time, generation, actor, reason, code_version, run_id, batch_id)
SELECT repo_id, job_type,
       CASE WHEN upper(%(added_revs)s::int8range) <= origin_rev
              OR upper(%(added_time)s::tstzrange) <= origin_time
            THEN 'backfill' ELSE 'forward' END,
       %(added_revs)s, %(added_time)s, origin_rev, origin_time,
       watermark_rev, watermark_time, generation, %(actor)s, %(reason)s, %(code_version)s,
       %(run_id)s, %(batch_id)s
  FROM grown

-- name: move_origin
-- Moves the origin back to the start of a covered window, unless that would move the watermark back.
WITH moved AS (
    UPDATE scm.sync_watermarks
       SET origin_rev = lower(%(revs)s::int8range), origin_time = lower(%(period)s::tstzrange),
           updated_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
       AND (origin_rev > lower(%(revs)s::int8range) OR origin_time > lower(%(period)s::tstzrange))
       AND (%(revs)s::int8range IS NULL
            OR scm.watermark_rev(covered_revs, lower(%(revs)s::int8range)) >= coalesce(watermark_rev, 0))
       AND (%(period)s::tstzrange IS NULL
            OR scm.watermark_time(covered_time, lower(%(period)s::tstzrange))
               >= coalesce(watermark_time, '-infinity'))
    RETURNING *
)
INSERT INTO scm.sync_watermark_events
       (repo_id, job_type, direction, origin_rev, origin_time, watermark_rev, watermark_time,
        generation, actor, reason, code_version)
SELECT repo_id, job_type, 'origin', origin_rev, origin_time, watermark_rev, watermark_time,
       generation, %(actor)s, %(reason)s, %(code_version)s
  FROM moved

-- name: replace
-- Replaces the coverage on a person's request (set or reset). The new generation locks running jobs out.
UPDATE scm.sync_watermarks
   SET covered_revs = %(revs)s, covered_time = %(period)s, generation = generation + 1,
       verified_at = NULL, updated_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
RETURNING generation

-- name: visited
-- Stores the result of a visit. An unchanged state keeps its start.
UPDATE scm.sync_watermarks
   SET access_since = CASE WHEN access = %(access)s THEN access_since ELSE now() END,
       access = %(access)s,
       access_detail = %(detail)s,
       head_rev = greatest(head_rev, %(head_rev)s),
       verified_at = greatest(verified_at, %(verified_at)s),
       activity_at = greatest(activity_at, %(activity_at)s),
       visited_at = now(),
       updated_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: record_scan
-- Records the revision at which the rolling scan continues.
UPDATE scm.sync_watermarks
   SET sweep_rev = %(sweep_rev)s, swept_at = now(), updated_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: events
-- Lists the changes of coverage, newest first, for a person.
SELECT event_id, created_at, direction, added_revs, added_time, watermark_rev, watermark_time, generation,
       actor, reason, run_id
  FROM scm.sync_watermark_events
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
 ORDER BY event_id DESC
 LIMIT %(limit)s

-- name: lock
-- Locks the row for the writing transaction and reads its generation, to compare it with the job's.
SELECT generation FROM scm.sync_watermarks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
   FOR NO KEY UPDATE
