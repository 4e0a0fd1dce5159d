-- Statements of sync_pipeline/ledger/rate_limits.py. They manage the rate limits that all processes share
-- (``scm.sync_rate_limits``).

-- name: acquire
-- Takes a token for one request, or a position in the queue for a later token. The clock is read behind the
-- lock, because others may use up the moment meanwhile. Nothing is taken if the wait is too long. Neither
-- if this kind of request has its own bucket and comes without its token. The commit is asynchronous,
-- because a token lost in a crash is not worth a flush per request.
WITH held AS MATERIALIZED (
    SELECT tokens, rate, refilled_at, changed_at
      FROM scm.sync_rate_limits
     WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
       FOR UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', TRUE) AS unflushed
      FROM (SELECT count(*) FROM held) AS locked
), filled AS MATERIALIZED (
    SELECT c.now, greatest(h.refilled_at, c.now) AS refilled_at, h.changed_at, h.rate AS old_rate,
           least(%(burst)s::float8, h.tokens + h.rate
                 * greatest(0, extract(epoch FROM c.now - h.refilled_at)::float8)) AS tokens,
           CASE WHEN h.changed_at IS NULL THEN %(rate)s::float8
                ELSE least(%(rate)s::float8, h.rate + %(raised_per_minute)s::float8 * %(rate)s::float8 / 60
                           * greatest(0, extract(epoch FROM c.now - h.changed_at)::float8)) END AS rate
      FROM held AS h CROSS JOIN clock AS c
), queued AS MATERIALIZED (
    SELECT f.now, f.refilled_at, f.rate,
           CASE WHEN f.rate < %(rate)s::float8 THEN greatest(f.changed_at, f.now) END AS changed_at,
           CASE WHEN f.tokens < 0 THEN f.tokens * f.rate / f.old_rate ELSE f.tokens END AS tokens
      FROM filled AS f
), measured AS MATERIALIZED (
    SELECT q.*,
           extract(epoch FROM q.refilled_at - q.now)::float8 + greatest(0, 1 - q.tokens) / q.rate AS wait,
           EXISTS (SELECT
                     FROM scm.sync_rate_limits AS own
                    WHERE own.instance = %(instance)s AND own.endpoint_class = %(kind)s
                      AND (own.changed_at IS NOT NULL OR own.paused_until > q.now)) AS has_own
      FROM queued AS q
)
UPDATE scm.sync_rate_limits AS b
   SET tokens = j.tokens - CASE WHEN j.wait <= %(longest)s AND NOT j.has_own THEN 1 ELSE 0 END,
       rate = j.rate, refilled_at = j.refilled_at, changed_at = j.changed_at,
       consumed = b.consumed + (j.wait <= %(longest)s AND NOT j.has_own)::integer,
       rejected = b.rejected + (j.wait > %(longest)s AND NOT j.has_own)::integer
  FROM measured AS j
 WHERE b.instance = %(instance)s AND b.endpoint_class = %(bucket)s
RETURNING j.wait, j.has_own, j.now AS given_at, b.paused_until, b.pause_reason, b.consecutive_429

-- name: create
-- Creates the bucket at the first request to a server.
INSERT INTO scm.sync_rate_limits (instance, endpoint_class, tokens, rate)
VALUES (%(instance)s, %(bucket)s, %(tokens)s, %(rate)s)
ON CONFLICT DO NOTHING

-- name: is_valid
-- Returns whether a position in the queue still counts when its time has come.
SELECT paused_at IS NULL OR paused_at < %(given_at)s AS valid
  FROM scm.sync_rate_limits
 WHERE instance = %(instance)s AND endpoint_class = %(bucket)s

-- name: lock
-- Locks a bucket that a response or a person changes.
SELECT tokens, rate, refilled_at, paused_until, paused_at, pause_reason, changed_at, consecutive_429,
       last_429_at, server_limit, server_remaining
  FROM scm.sync_rate_limits
 WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
   FOR UPDATE

-- name: change
-- Stores the new state of a bucket.
UPDATE scm.sync_rate_limits
   SET tokens = %(tokens)s, rate = %(rate)s, refilled_at = %(refilled_at)s, paused_until = %(paused_until)s,
       paused_at = %(paused_at)s, pause_reason = left(%(pause_reason)s, 2000), changed_at = %(changed_at)s,
       consecutive_429 = %(consecutive_429)s, last_429_at = %(last_429_at)s,
       server_limit = %(server_limit)s, server_remaining = %(server_remaining)s,
       limited = limited + %(refused)s::integer
 WHERE instance = %(instance)s AND endpoint_class = %(bucket)s

-- name: servers
-- Lists the servers of the catalog, to check the name that a person gave.
SELECT DISTINCT instance, kind FROM scm.repos ORDER BY instance, kind

-- name: note
-- Records what a person did to the limits of a server.
INSERT INTO scm.rate_limit_events (instance, action, until, actor, reason)
VALUES (%(instance)s, %(action)s, %(until)s, %(actor)s, left(%(reason)s, 2000))

-- name: events
-- Lists what people did to the limits, newest first.
SELECT created_at, instance, action, until, actor, reason
  FROM scm.rate_limit_events
 WHERE %(instance)s::text IS NULL OR instance = %(instance)s
 ORDER BY event_id DESC
 LIMIT %(limit)s

-- name: list
-- Lists all buckets, for a report.
SELECT * FROM scm.sync_rate_limits ORDER BY instance, endpoint_class
