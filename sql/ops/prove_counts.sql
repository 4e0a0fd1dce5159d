-- Runs whose counters are not the sum of their batches. Empty if the records agree.
SELECT r.run_id, r.repo_id, r.job_type,
       r.batches, count(b.batch_id) AS counted_batches,
       r.rows_read, coalesce(sum(b.rows_read), 0) AS counted_rows
  FROM scm.sync_runs AS r
  LEFT JOIN scm.sync_batches AS b USING (run_id)
 GROUP BY r.run_id
HAVING (r.batches, r.rows_read, r.inserted, r.updated, r.unchanged, r.regressed, r.quarantined)
       IS DISTINCT FROM (count(b.batch_id), coalesce(sum(b.rows_read), 0), coalesce(sum(b.inserted), 0),
                         coalesce(sum(b.updated), 0), coalesce(sum(b.unchanged), 0),
                         coalesce(sum(b.regressed), 0), coalesce(sum(b.quarantined), 0));
