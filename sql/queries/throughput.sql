-- Statements of sync_pipeline/ledger/throughput.py. They estimate how fast a source was read lately.

-- name: pace
-- Reads seconds per row of the five largest runs of a month, because small runs say nothing about much
-- work. Runs of the repository come first, then those of the same server.
SELECT sum(seconds)::float8 / nullif(sum(rows_read), 0) AS seconds_per_row
  FROM (SELECT s.rows_read, extract(epoch FROM s.finished_at - s.started_at) AS seconds
          FROM scm.sync_runs AS s
          JOIN scm.repos AS r USING (repo_id)
         WHERE r.instance = (SELECT instance FROM scm.repos WHERE repo_id = %(repo_id)s)
           AND s.job_type = %(job_type)s AND s.status = 'completed' AND s.calls > 0 AND s.rows_read > 0
           AND s.started_at > now() - interval '30 days'
         ORDER BY s.repo_id = %(repo_id)s DESC, s.rows_read DESC
         LIMIT 5) AS largest
