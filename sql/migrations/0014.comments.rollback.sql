COMMENT ON COLUMN scm.v_facts.meta_json IS
    'What is special to the kind of fact.';
COMMENT ON TABLE scm.breakers IS
    'Circuit breakers: whether so much fails in a scope that nothing but probes is started there. Written at every edge by the scheduler, from finished runs; a scope without a row is closed.';
COMMENT ON COLUMN scm.breakers.state IS
    'closed: all runs; open: nothing does until it may be tried again; half_open: single probes.';
COMMENT ON COLUMN scm.breakers.since IS
    'When it came into this state.';
COMMENT ON COLUMN scm.breakers.failure_rate IS
    'Share of finished runs that failed, smoothed, when it was last judged.';
COMMENT ON COLUMN scm.breakers.rate_limit_rate IS
    'Share of finished runs that were told to slow down, smoothed.';
COMMENT ON COLUMN scm.breakers.timeout_rate IS
    'Share of finished runs with time-outs, smoothed.';
COMMENT ON COLUMN scm.breakers.samples IS
    'Finished runs that were judged.';
COMMENT ON COLUMN scm.breakers.judged_upto IS
    'End of the last run that was judged.';
COMMENT ON COLUMN scm.breakers.updated_at IS
    'When it was last judged.';
COMMENT ON TABLE scm.dagster_requests IS
    'What people asked for in the Dagster UI and the ledger took over: backfills, and runs that failed before they began.';
COMMENT ON COLUMN scm.dagster_requests.pool IS
    'Worker pool whose repositories the jobs are of; each pool takes over its own.';
COMMENT ON COLUMN scm.dagster_requests.skipped_count IS
    'Partitions without a job: of retired repositories, or of partitions that there are none of.';
COMMENT ON COLUMN scm.dagster_requests.status IS
    'What Dagster called it at the last look.';
COMMENT ON COLUMN scm.dagster_requests.ended_at IS
    'When the scheduler saw that Dagster is done with it; what is left is the ledger''s alone from then on.';
COMMENT ON COLUMN scm.deferred_fetches.job_type IS
    'What was read.';
COMMENT ON TABLE scm.discrepancies IS
    'Rows that differ between a source and what is stored. Resolved when a comparison of their place no longer shows them.';
COMMENT ON COLUMN scm.discrepancies.job_type IS
    'What was compared.';
COMMENT ON COLUMN scm.discrepancies.repairs IS
    'How many repairs tried to heal it; from the third one on a person has to look.';
COMMENT ON COLUMN scm.discrepancies.found_at IS
    'When it was first seen so; for extra: since when it has been gone at every look.';
COMMENT ON COLUMN scm.discrepancies.resolved_at IS
    'When it was seen no longer, or became a tombstone; NULL while it is open.';
COMMENT ON COLUMN scm.git_commits.flags IS
    'What had to be mended to store it.';
COMMENT ON COLUMN scm.health.reasons IS
    'What was wrong, as low-cardinality words.';
COMMENT ON TABLE scm.job_events IS
    'What a person did to a job: tried again, given up, or taken from its worker.';
COMMENT ON COLUMN scm.job_events.action IS
    'reset: tried again at once; drop: given up; release: taken from whoever worked on it; join: a person asked for the same work.';
COMMENT ON COLUMN scm.job_events.old_status IS
    'What the job was before.';
COMMENT ON COLUMN scm.job_events.new_status IS
    'What it was afterwards.';
COMMENT ON COLUMN scm.job_events.job_type IS
    'What the job synced.';
COMMENT ON TABLE scm.mr_approvals IS
    'Approvals in force, and those that were; one that was taken away is closed, not deleted.';
COMMENT ON COLUMN scm.mr_commits.flags IS
    'What had to be mended to store it.';
COMMENT ON TABLE scm.mr_reviewers IS
    'Who is asked for a review, and who was; one that was taken back is closed, not deleted.';
COMMENT ON TABLE scm.mr_versions IS
    'What each push made of a merge request; replaced as a set.';
COMMENT ON COLUMN scm.mr_versions.flags IS
    'What had to be mended to store it.';
COMMENT ON COLUMN scm.mrs.author_id IS
    'Account that opened it; NULL where it was deleted with nobody in its place.';
COMMENT ON COLUMN scm.mrs.merged_by_username IS
    'User name of who merged it.';
COMMENT ON COLUMN scm.mrs.closed_by_username IS
    'User name of who closed it.';
COMMENT ON COLUMN scm.mrs.flags IS
    'What had to be mended to store it.';
COMMENT ON COLUMN scm.obligations.job_type IS
    'What was read.';
COMMENT ON TABLE scm.pauses IS
    'What a person has stopped: nothing new is started or claimed there until the pause ends.';
COMMENT ON COLUMN scm.pauses.scope IS
    'What is paused: everything (global), one server, one tenant, or one repository.';
COMMENT ON COLUMN scm.quarantine.job_type IS
    'What was read.';
COMMENT ON COLUMN scm.reconciliations.job_type IS
    'What was compared.';
COMMENT ON COLUMN scm.refs.judged_tip IS
    'Tip at the latest judged move; differs from tip while it is not known whether the move was forced.';
COMMENT ON COLUMN scm.refs.flags IS
    'What had to be mended to store it.';
COMMENT ON COLUMN scm.repo_events.event IS
    'What happened.';
COMMENT ON COLUMN scm.repo_events.reason IS
    'Why, in the words of the person who did it; NULL where nobody was asked.';
COMMENT ON COLUMN scm.repos.tenant IS
    'Owner for fairness and reports; default: the first segment of a GitLab project''s path, the server of a Subversion repository (until 0.6.0 the first folder of its URL).';
COMMENT ON COLUMN scm.repos.slug IS
    'Second part of the Dagster asset key: the path in a-z, 0-9 and _, with __ for /, and the number of the project or repository only where another one has the same. Fixed at registration; before 0.7.0 always with the number.';
COMMENT ON COLUMN scm.review_events.resolved_by_username IS
    'User name of who resolved it.';
COMMENT ON COLUMN scm.review_events.details IS
    'What is special to the kind: people added and removed, the label, the number of commits.';
COMMENT ON COLUMN scm.review_events.flags IS
    'What had to be mended to store it.';
COMMENT ON TABLE scm.server_failures IS
    'Servers of which the latest look of a changes sensor got no usable answer; the row goes when they answer again.';
COMMENT ON COLUMN scm.svn_revision_versions.flags IS
    'What had to be mended to store it.';
COMMENT ON COLUMN scm.svn_revisions.flags IS
    'What had to be mended to store it: invalid_utf8, control_characters, nul, bad_date; what was not read: changed_paths_unread, message_unread; where http may have changed a CR or TAB: line_ends_unsure, paths_unsure.';
COMMENT ON COLUMN scm.sync_batches.job_type IS
    'What was read.';
COMMENT ON COLUMN scm.sync_batches.quarantined IS
    'Rows set aside.';
COMMENT ON COLUMN scm.sync_batches.position IS
    'Where in the source it was read, in a few words, such as a page; NULL where it read no rows, and for batches of 0.6.0 and earlier.';
COMMENT ON TABLE scm.sync_jobs IS
    'One row per window of a (repository, job type) that is to be synced. Decides what and when.';
COMMENT ON COLUMN scm.sync_jobs.job_type IS
    'What is read.';
COMMENT ON COLUMN scm.sync_jobs.claimed_process IS
    'Which process that is, beyond doubt on its own machine, so that a dead owner is noticed at once.';
COMMENT ON COLUMN scm.sync_jobs.trigger IS
    'What started it: sensor, ui, runner, ci, worker or registration.';
COMMENT ON COLUMN scm.sync_jobs.from_raw IS
    'True: derives rows anew from their stored raw and asks no source. Covers nothing, and the scheduler never takes it up.';
COMMENT ON COLUMN scm.sync_jobs.quarantine_ids IS
    'The entries of quarantine that a repair job tries to store again, and nothing else; NULL for every other job. The scheduler never takes such a job up.';
COMMENT ON COLUMN scm.sync_jobs.depth IS
    'Of a probe: listing asks for details only where lists differ, details asks for all of them. NULL for every other job.';
COMMENT ON COLUMN scm.sync_jobs.decision IS
    'What the scheduler knew when it started the job: reason, rates, breaker, caps and what they counted, suggested sizes. NULL where no scheduler did.';
COMMENT ON TABLE scm.sync_lock_waiters IS
    'Who waits for a lease; the holder lets a smaller priority in between two chunks.';
COMMENT ON TABLE scm.sync_locks IS
    'The right to write for one (repository, job type). The row stays; a free lease has no holder.';
COMMENT ON COLUMN scm.sync_rate_limits.endpoint_class IS
    'What takes from the bucket: all requests to a GitLab (all), all commands to an SVN server (svn), requests for the projects of one tenant (tenant:<name>), or one kind of request to a GitLab that the server limits on its own.';
COMMENT ON COLUMN scm.sync_rate_limits.tokens IS
    'Requests that may be sent at once, at refilled_at; below zero: so many have a place in the queue and wait for it.';
COMMENT ON COLUMN scm.sync_rate_limits.paused_at IS
    'When the pause was set or lifted; places in the queue from before count no more.';
COMMENT ON COLUMN scm.sync_rate_limits.pause_reason IS
    'Why it is or was paused, or who lifted that and why, in one line.';
COMMENT ON COLUMN scm.sync_rate_limits.changed_at IS
    'From when on the lowered rate is raised; NULL while it is the setting.';
COMMENT ON COLUMN scm.sync_rate_limits.consecutive_429 IS
    'Times in a row that we were told to slow down; answers to requests that were sent together count once.';
COMMENT ON COLUMN scm.sync_rate_limits.last_429_at IS
    'The last such time.';
COMMENT ON COLUMN scm.sync_rate_limits.consumed IS
    'Requests that were let through, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.rejected IS
    'Requests that would have waited too long and were turned away, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.limited IS
    'Answers that told us to slow down, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.server_limit IS
    'The limit that the server last told, in requests of its own period.';
COMMENT ON COLUMN scm.sync_rate_limits.server_remaining IS
    'What it said was left of it.';
COMMENT ON COLUMN scm.sync_runs.job_type IS
    'What was read.';
COMMENT ON COLUMN scm.sync_runs.quarantined IS
    'Rows set aside.';
COMMENT ON COLUMN scm.sync_runs.rate_limited IS
    'Answers that told us to slow down (429).';
COMMENT ON COLUMN scm.sync_runs.waited_seconds IS
    'Seconds spent waiting: for the shared rate limit and before asking again.';
COMMENT ON TABLE scm.sync_watermarks IS
    'Per (repository, job type): what is known to be complete. Rebuilt exactly by scm.sync_watermark_events.';
COMMENT ON COLUMN scm.sync_watermarks.sweep_rev IS
    'SVN: next revision that the rolling sweep re-reads for edited revision properties.';
COMMENT ON COLUMN scm.sync_watermarks.swept_at IS
    'SVN: when the sweep last re-read a block.';
COMMENT ON COLUMN scm.sync_watermarks.access IS
    'What the last visit found at the source.';
COMMENT ON COLUMN scm.sync_watermarks.visited_at IS
    'When a job last looked at the source, whatever it found.';
COMMENT ON COLUMN scm.unreadable_details.job_type IS
    'What is read.';
COMMENT ON TABLE scm.worker_pools IS
    'The pools that were alive lately and what each of them takes.';
COMMENT ON COLUMN scm.worker_pools.instances IS
    'Servers that it takes; empty is all.';
COMMENT ON COLUMN scm.worker_pools.tenants IS
    'Tenants that it takes; empty is all.';
COMMENT ON COLUMN scm.worker_pools.job_types IS
    'Job types that it takes; empty is all.';
COMMENT ON COLUMN scm.worker_pools.seen_at IS
    'When a scheduler or worker of the pool last said that it lives.';
