-- Plainer comments on tables and columns. No table is rewritten.
-- depends: 0013.job_types

COMMENT ON COLUMN scm.v_facts.meta_json IS
    'Properties of this kind of fact.';
COMMENT ON TABLE scm.breakers IS
    'Circuit breakers. While one is open, only probes start in its scope. The scheduler writes every change of state, from finished runs; a scope without a row is closed.';
COMMENT ON COLUMN scm.breakers.state IS
    'closed: all jobs start; open: none start; half_open: single probes start.';
COMMENT ON COLUMN scm.breakers.since IS
    'Start of this state.';
COMMENT ON COLUMN scm.breakers.failure_rate IS
    'Smoothed share of finished runs that failed, at the last evaluation.';
COMMENT ON COLUMN scm.breakers.rate_limit_rate IS
    'Smoothed share of requests that the server refused with 429.';
COMMENT ON COLUMN scm.breakers.timeout_rate IS
    'Smoothed share of requests that timed out.';
COMMENT ON COLUMN scm.breakers.samples IS
    'Finished runs at the last evaluation.';
COMMENT ON COLUMN scm.breakers.judged_upto IS
    'End of the latest evaluated run.';
COMMENT ON COLUMN scm.breakers.updated_at IS
    'Time of the last evaluation.';
COMMENT ON TABLE scm.dagster_requests IS
    'Requests from the Dagster UI that the ledger took over: backfills, and runs that failed before they began.';
COMMENT ON COLUMN scm.dagster_requests.pool IS
    'Worker pool of the repositories; each pool takes over its own requests.';
COMMENT ON COLUMN scm.dagster_requests.skipped_count IS
    'Partitions without a job: of retired repositories, or unknown ones.';
COMMENT ON COLUMN scm.dagster_requests.status IS
    'Its status in Dagster when the scheduler last read it.';
COMMENT ON COLUMN scm.dagster_requests.ended_at IS
    'When Dagster had finished it. From then on only the ledger does the remaining jobs.';
COMMENT ON COLUMN scm.deferred_fetches.job_type IS
    'The job type.';
COMMENT ON TABLE scm.discrepancies IS
    'Rows that differ between a source and the tables. Resolved when a later comparison no longer finds them.';
COMMENT ON COLUMN scm.discrepancies.job_type IS
    'The compared job type.';
COMMENT ON COLUMN scm.discrepancies.repairs IS
    'Number of repairs that tried to fix it. After the third one it needs a person.';
COMMENT ON COLUMN scm.discrepancies.found_at IS
    'When it was first found; for extra: since when every comparison found it gone.';
COMMENT ON COLUMN scm.discrepancies.resolved_at IS
    'When it was no longer found, or became a tombstone; NULL while it is open.';
COMMENT ON COLUMN scm.git_commits.flags IS
    'Repairs that were needed to store it.';
COMMENT ON COLUMN scm.health.reasons IS
    'The reasons, as low-cardinality words.';
COMMENT ON TABLE scm.job_events IS
    'Actions of a person on a job: retried, dropped, or taken from its worker.';
COMMENT ON COLUMN scm.job_events.action IS
    'reset: retried at once; drop: given up; release: taken from its worker; join: a person requested the same work.';
COMMENT ON COLUMN scm.job_events.old_status IS
    'Status before the action.';
COMMENT ON COLUMN scm.job_events.new_status IS
    'Status after the action.';
COMMENT ON COLUMN scm.job_events.job_type IS
    'Job type of the job.';
COMMENT ON TABLE scm.mr_approvals IS
    'Current and former approvals; a withdrawn one is closed, not deleted.';
COMMENT ON COLUMN scm.mr_commits.flags IS
    'Repairs that were needed to store it.';
COMMENT ON TABLE scm.mr_reviewers IS
    'Current and former review requests; a withdrawn one is closed, not deleted.';
COMMENT ON TABLE scm.mr_versions IS
    'Versions of a merge request, one for each push; replaced as a set.';
COMMENT ON COLUMN scm.mr_versions.flags IS
    'Repairs that were needed to store it.';
COMMENT ON COLUMN scm.mrs.author_id IS
    'Account that opened it; NULL if the account was deleted.';
COMMENT ON COLUMN scm.mrs.merged_by_username IS
    'User name of the account that merged it.';
COMMENT ON COLUMN scm.mrs.closed_by_username IS
    'User name of the account that closed it.';
COMMENT ON COLUMN scm.mrs.flags IS
    'Repairs that were needed to store it.';
COMMENT ON COLUMN scm.obligations.job_type IS
    'The job type.';
COMMENT ON TABLE scm.pauses IS
    'Pauses by people: nothing new is started or claimed there until the pause ends.';
COMMENT ON COLUMN scm.pauses.scope IS
    'Scope of the pause: everything (global), one server, one tenant, or one repository.';
COMMENT ON COLUMN scm.quarantine.job_type IS
    'The job type.';
COMMENT ON COLUMN scm.reconciliations.job_type IS
    'The compared job type.';
COMMENT ON COLUMN scm.refs.judged_tip IS
    'Tip at the latest evaluated move. It differs from tip until the program knows whether the move was forced.';
COMMENT ON COLUMN scm.refs.flags IS
    'Repairs that were needed to store it.';
COMMENT ON COLUMN scm.repo_events.event IS
    'Kind of the event.';
COMMENT ON COLUMN scm.repo_events.reason IS
    'Reason that the person gave; NULL if none was requested.';
COMMENT ON COLUMN scm.repos.tenant IS
    'Owner for fairness and reports. Default: the first segment of a GitLab project''s path, or the server of a Subversion repository. Until 0.6.0 it was the first folder of the Subversion URL.';
COMMENT ON COLUMN scm.repos.slug IS
    'Second part of the Dagster asset key: the path in a-z, 0-9 and _, with __ for /. A number follows if another repository has the same path. Fixed at registration; before 0.7.0 always with the number.';
COMMENT ON COLUMN scm.review_events.resolved_by_username IS
    'User name of the account that resolved it.';
COMMENT ON COLUMN scm.review_events.details IS
    'Properties of this kind: people added and removed, the label, the number of commits.';
COMMENT ON COLUMN scm.review_events.flags IS
    'Repairs that were needed to store it.';
COMMENT ON TABLE scm.server_failures IS
    'Servers that gave no usable response to the latest check of a changes sensor. The row is deleted when they respond again.';
COMMENT ON COLUMN scm.svn_revision_versions.flags IS
    'Repairs that were needed to store it.';
COMMENT ON COLUMN scm.svn_revisions.flags IS
    'Repairs that were needed to store it: invalid_utf8, control_characters, nul, bad_date. Unread parts: changed_paths_unread, message_unread. CR or TAB that http may have changed: line_ends_unsure, paths_unsure.';
COMMENT ON COLUMN scm.sync_batches.job_type IS
    'The job type.';
COMMENT ON COLUMN scm.sync_batches.quarantined IS
    'Rows that went to quarantine.';
COMMENT ON COLUMN scm.sync_batches.position IS
    'Position in the source, such as a page. NULL if it read no rows, and for batches of 0.6.0 and earlier.';
COMMENT ON TABLE scm.sync_jobs IS
    'One row per window of an asset that is to be synced.';
COMMENT ON COLUMN scm.sync_jobs.job_type IS
    'The job type.';
COMMENT ON COLUMN scm.sync_jobs.claimed_process IS
    'Exact identity of the process on its machine, so that a dead owner is noticed at once.';
COMMENT ON COLUMN scm.sync_jobs.trigger IS
    'Origin of the start: sensor, ui, runner, ci, worker or registration.';
COMMENT ON COLUMN scm.sync_jobs.from_raw IS
    'True: fills columns from the stored JSON (raw), without a request to the source. Covers nothing, and the scheduler never starts it.';
COMMENT ON COLUMN scm.sync_jobs.quarantine_ids IS
    'The entries of quarantine that a repair job tries to store again; NULL for every other job. The scheduler never starts such a job.';
COMMENT ON COLUMN scm.sync_jobs.depth IS
    'Of a probe: listing requests details only where lists differ, details requests all. NULL for every other job.';
COMMENT ON COLUMN scm.sync_jobs.decision IS
    'The scheduler''s decision when it started the job: reason, rates, breaker, caps and their counts, suggested sizes. NULL if no scheduler started it.';
COMMENT ON TABLE scm.sync_lock_waiters IS
    'Attempts that wait for a lease. The holder releases it to a smaller priority between two chunks.';
COMMENT ON TABLE scm.sync_locks IS
    'The right to write for one asset. The row stays; a free lease has no holder.';
COMMENT ON COLUMN scm.sync_rate_limits.endpoint_class IS
    'Requests that take from the bucket: all of a GitLab (all), all commands to an SVN server (svn), or those of one tenant (tenant:<name>). Else one kind of request that the GitLab limits separately.';
COMMENT ON COLUMN scm.sync_rate_limits.tokens IS
    'Requests that may be sent at once, at refilled_at. Below zero: so many requests are in the queue.';
COMMENT ON COLUMN scm.sync_rate_limits.paused_at IS
    'When the pause was set or lifted; earlier positions in the queue are void.';
COMMENT ON COLUMN scm.sync_rate_limits.pause_reason IS
    'Why it is or was paused, or who lifted the pause and why, in one line.';
COMMENT ON COLUMN scm.sync_rate_limits.changed_at IS
    'Time from which the lowered rate rises; NULL if it equals the setting.';
COMMENT ON COLUMN scm.sync_rate_limits.consecutive_429 IS
    'Refusals (429) in a row; those of requests that were sent together count once.';
COMMENT ON COLUMN scm.sync_rate_limits.last_429_at IS
    'Time of the latest refusal.';
COMMENT ON COLUMN scm.sync_rate_limits.consumed IS
    'Requests that were sent, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.rejected IS
    'Requests that were rejected because they would have waited too long, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.limited IS
    'Responses that asked us to slow down, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.server_limit IS
    'The limit that the server last stated, in requests of its own period.';
COMMENT ON COLUMN scm.sync_rate_limits.server_remaining IS
    'Requests of that limit that were left.';
COMMENT ON COLUMN scm.sync_runs.job_type IS
    'The job type.';
COMMENT ON COLUMN scm.sync_runs.quarantined IS
    'Rows that went to quarantine.';
COMMENT ON COLUMN scm.sync_runs.rate_limited IS
    'Responses that asked us to slow down (429).';
COMMENT ON COLUMN scm.sync_runs.waited_seconds IS
    'Seconds spent waiting for the shared rate limit and before retries.';
COMMENT ON TABLE scm.sync_watermarks IS
    'Coverage of each asset: the windows that are known to be complete. scm.sync_watermark_events can rebuild it exactly.';
COMMENT ON COLUMN scm.sync_watermarks.sweep_rev IS
    'SVN: next revision of the rolling scan for edited revision properties.';
COMMENT ON COLUMN scm.sync_watermarks.swept_at IS
    'SVN: when the rolling scan last read a block.';
COMMENT ON COLUMN scm.sync_watermarks.access IS
    'Result of the last visit to the source.';
COMMENT ON COLUMN scm.sync_watermarks.visited_at IS
    'When a job last visited the source, with any result.';
COMMENT ON COLUMN scm.unreadable_details.job_type IS
    'The job type.';
COMMENT ON TABLE scm.worker_pools IS
    'Worker pools that ran lately, with the servers, tenants and job types that each accepts.';
COMMENT ON COLUMN scm.worker_pools.instances IS
    'Servers that it accepts; empty means all.';
COMMENT ON COLUMN scm.worker_pools.tenants IS
    'Tenants that it accepts; empty means all.';
COMMENT ON COLUMN scm.worker_pools.job_types IS
    'Job types that it accepts; empty means all.';
COMMENT ON COLUMN scm.worker_pools.seen_at IS
    'Time of the last heartbeat of a scheduler or worker of the pool.';
