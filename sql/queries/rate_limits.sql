-- Statements of sync_pipeline/ledger/rate_limits.py. They manage the rate limits that all processes share
-- (``scm.sync_rate_limits``).

-- name: acquire
-- Takes a token for one request, or a position in the queue for a later token. A request that does not wait
-- may take permits ahead, and gives back those that expired unused. The clock is read behind the lock, because
-- others may use up the moment meanwhile. Nothing is taken if the wait is too long, or if this kind of request
-- has its own bucket and comes without its token. The commit is asynchronous, because a token lost in a crash
-- is not worth a flush per request.
WITH held AS MATERIALIZED (
    SELECT *
      FROM scm.sync_rate_limits
     WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
       FOR UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', TRUE) AS unflushed
      FROM (SELECT count(*) FROM held) AS locked
), bounds AS MATERIALIZED (
    SELECT h.*, c.now,
           CASE WHEN h.bundled_until > c.now THEN h.bundled ELSE 0 END AS ahead_already,
           greatest(%(lowest)s::float8, least(
               %(ceiling)s::float8,
               CASE WHEN c.now - h.announced_at < make_interval(secs => %(announced_seconds)s)
                    THEN h.announced_rate END,
               CASE WHEN c.now - h.last_429_at < make_interval(secs => %(kept_seconds)s)
                     AND h.refused_rate IS NOT NULL
                    THEN greatest(%(rate)s::float8, %(below_refused)s::float8 * h.refused_rate) END)) AS top,
           coalesce(c.now - h.tuned_at < make_interval(secs => %(kept_seconds)s), FALSE) AS is_found
      FROM held AS h CROSS JOIN clock AS c
), filled AS MATERIALIZED (
    SELECT b.now, b.changed_at, b.ahead_already, b.rate AS old_rate,
           greatest(b.refilled_at, b.now) AS refilled_at,
           least(%(rate)s::float8, b.top) AS start,
           CASE WHEN b.changed_at IS NULL AND b.is_found THEN b.tuned_at END AS tuned_at,
           least(%(burst)s::float8 - b.ahead_already, b.tokens + %(unused)s::integer + b.rate
                 * greatest(0, extract(epoch FROM b.now - b.refilled_at)::float8)) AS tokens,
           CASE WHEN b.changed_at IS NOT NULL
                THEN least(%(rate)s::float8, b.top, b.rate + %(raised_per_minute)s::float8 * %(rate)s::float8
                           / 60 * greatest(0, extract(epoch FROM b.now - b.changed_at)::float8))
                WHEN b.is_found THEN least(b.rate, b.top)
                ELSE least(%(rate)s::float8, b.top) END AS rate
      FROM bounds AS b
), queued AS MATERIALIZED (
    SELECT f.now, f.refilled_at, f.rate, f.tuned_at, f.ahead_already,
           CASE WHEN f.changed_at IS NOT NULL AND f.rate < f.start THEN greatest(f.changed_at, f.now) END AS changed_at,
           CASE WHEN f.tokens < 0 THEN f.tokens * f.rate / f.old_rate ELSE f.tokens END AS tokens
      FROM filled AS f
), measured AS MATERIALIZED (
    SELECT q.*,
           extract(epoch FROM q.refilled_at - q.now)::float8 + greatest(0, 1 - q.tokens) / q.rate AS wait,
           ARRAY(SELECT own.endpoint_class
                   FROM scm.sync_rate_limits AS own
                  WHERE own.instance = %(instance)s AND own.endpoint_class <> %(bucket)s
                    AND (own.changed_at IS NOT NULL OR own.paused_until > q.now)) AS slowed_kinds
      FROM queued AS q
), judged AS MATERIALIZED (
    SELECT m.*, coalesce(%(kind)s = ANY (m.slowed_kinds), FALSE) AS has_own,
           CASE WHEN m.wait <= 0 AND m.rate >= %(min_bundled_rate)s
                THEN greatest(0, least(%(ahead)s::integer, floor(m.tokens - 1)::integer,
                                       floor(%(burst)s::float8 / 2)::integer - m.ahead_already))
                ELSE 0 END AS ahead
      FROM measured AS m
), taken AS MATERIALIZED (
    SELECT j.*, CASE WHEN j.wait <= %(longest)s AND NOT j.has_own THEN 1 + j.ahead ELSE 0 END AS permits
      FROM judged AS j
)
UPDATE scm.sync_rate_limits AS b
   SET tokens = t.tokens - t.permits, rate = t.rate, refilled_at = t.refilled_at,
       changed_at = t.changed_at, tuned_at = t.tuned_at,
       bundled = t.ahead_already + greatest(0, t.permits - 1),
       bundled_until = CASE WHEN t.permits > 1 THEN t.now + make_interval(secs => %(hold_seconds)s)
                            ELSE b.bundled_until END,
       consumed = b.consumed + t.permits - %(unused)s::integer,
       rejected = b.rejected + (t.wait > %(longest)s AND NOT t.has_own)::integer
  FROM taken AS t
 WHERE b.instance = %(instance)s AND b.endpoint_class = %(bucket)s
RETURNING t.wait, t.has_own, greatest(0, t.permits - 1) AS ahead, t.slowed_kinds, t.now AS given_at,
          b.rate, b.paused_until, b.pause_reason, b.consecutive_429

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
       last_429_at, server_limit, server_remaining, tuned_at, rate_reason, announced_rate, announced_at,
       refused_rate, bundled, bundled_until
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
       tuned_at = %(tuned_at)s, rate_reason = left(%(rate_reason)s, 2000),
       announced_rate = %(announced_rate)s, announced_at = %(announced_at)s,
       refused_rate = %(refused_rate)s, bundled = %(bundled)s, bundled_until = %(bundled_until)s,
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
