-- GitLab: refs, commits, merge requests, reviews, discovery, stopped credentials. Times are UTC.
-- depends: 0001.core

-- Discovery ----------------------------------------------------------------------------------------------

CREATE TABLE scm.discovery_roots (
    root_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance      text        NOT NULL,
    scope         text        NOT NULL CHECK (scope IN ('group', 'membership')),
    group_id      bigint,
    group_path    text,
    include       text[]      NOT NULL DEFAULT '{}',
    exclude       text[]      NOT NULL DEFAULT '{}',
    tenant        text,
    lifecycle     text        NOT NULL DEFAULT 'active' CHECK (lifecycle IN ('active', 'retired')),
    created_at    timestamptz NOT NULL DEFAULT now(),
    visited_at    timestamptz,
    completed_at  timestamptz,
    error_code    text,
    error         text        CHECK (length(error) <= 2000),
    listed_at     timestamptz,
    listed_down_to timestamptz,
    CHECK ((scope = 'group') = (group_id IS NOT NULL))
);
CREATE UNIQUE INDEX discovery_roots_once ON scm.discovery_roots (instance, scope, group_id) NULLS NOT DISTINCT
    WHERE lifecycle = 'active';
COMMENT ON TABLE scm.discovery_roots IS 'Groups, or the membership of a token, whose projects are registered as they appear.';
COMMENT ON COLUMN scm.discovery_roots.root_id IS 'Key of the root.';
COMMENT ON COLUMN scm.discovery_roots.instance IS 'The server, as in scm.repos.';
COMMENT ON COLUMN scm.discovery_roots.scope IS 'group: with all subgroups; membership: every project that the token''s user is a member of.';
COMMENT ON COLUMN scm.discovery_roots.group_id IS 'Numeric id of the group, which survives renames.';
COMMENT ON COLUMN scm.discovery_roots.group_path IS 'Full path of the group at the last visit.';
COMMENT ON COLUMN scm.discovery_roots.include IS 'Shell patterns of project paths to register; empty: all.';
COMMENT ON COLUMN scm.discovery_roots.exclude IS 'Shell patterns of project paths to leave out; they win.';
COMMENT ON COLUMN scm.discovery_roots.tenant IS 'Tenant of what is found; NULL: the first segment of each path.';
COMMENT ON COLUMN scm.discovery_roots.lifecycle IS 'active or retired; a retired root is not visited, its repositories stay.';
COMMENT ON COLUMN scm.discovery_roots.created_at IS 'When it was registered.';
COMMENT ON COLUMN scm.discovery_roots.visited_at IS 'When it was last visited, whatever came of it.';
COMMENT ON COLUMN scm.discovery_roots.completed_at IS 'When it was last listed to its end.';
COMMENT ON COLUMN scm.discovery_roots.error_code IS 'Why the last visit failed, or NULL.';
COMMENT ON COLUMN scm.discovery_roots.error IS 'One redacted line about that failure, or NULL.';
COMMENT ON COLUMN scm.discovery_roots.listed_at IS 'When the changes sensor last listed its newest activity.';
COMMENT ON COLUMN scm.discovery_roots.listed_down_to IS 'How far back in the server''s time that listing went; NULL: to its end.';

ALTER TABLE scm.repos
    ADD COLUMN root_id        bigint REFERENCES scm.discovery_roots,
    ADD COLUMN vanished_since timestamptz,
    ADD COLUMN vanished_looks integer NOT NULL DEFAULT 0;
-- A project is registered once while it is active, whatever its path.
CREATE UNIQUE INDEX repos_one_active_project ON scm.repos (instance, project_id)
    WHERE kind = 'gitlab' AND lifecycle = 'active';
COMMENT ON COLUMN scm.repos.root_id IS 'GitLab: the discovery root that lists it; NULL if none does.';
COMMENT ON COLUMN scm.repos.vanished_since IS 'Since when complete listings of its root do not show it; NULL while they do. Of a retired one: it was retired for that.';
COMMENT ON COLUMN scm.repos.vanished_looks IS 'How many complete listings in a row did not show it.';

CREATE TABLE scm.repo_events (
    event_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id    bigint      NOT NULL REFERENCES scm.repos,
    event      text        NOT NULL
               CHECK (event IN ('registered', 'moved', 'default_branch', 'archived', 'unarchived', 'vanished',
                                'returned', 'retired', 'reactivated')),
    old_value  text,
    new_value  text,
    actor      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX repo_events_by_repo ON scm.repo_events (repo_id, event_id);
COMMENT ON TABLE scm.repo_events IS 'Append only: what happened to a repository as a whole.';
COMMENT ON COLUMN scm.repo_events.event_id IS 'Order of the events.';
COMMENT ON COLUMN scm.repo_events.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.repo_events.event IS 'What happened.';
COMMENT ON COLUMN scm.repo_events.old_value IS 'Before, such as the old path.';
COMMENT ON COLUMN scm.repo_events.new_value IS 'After, such as the new path.';
COMMENT ON COLUMN scm.repo_events.actor IS 'Who did or noticed it.';
COMMENT ON COLUMN scm.repo_events.created_at IS 'When it was noticed.';
CREATE TRIGGER repo_events_append_only BEFORE UPDATE ON scm.repo_events
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_update();

-- Credentials --------------------------------------------------------------------------------------------

CREATE TABLE scm.credential_stops (
    instance     text        NOT NULL,
    fingerprint  text        NOT NULL,
    reason       text        NOT NULL CHECK (length(reason) <= 2000),
    stopped_at   timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (instance, fingerprint)
);
COMMENT ON TABLE scm.credential_stops IS 'Tokens that a server refused (401): nothing is started with them until one is accepted again.';
COMMENT ON COLUMN scm.credential_stops.instance IS 'The server, as in scm.repos.';
COMMENT ON COLUMN scm.credential_stops.fingerprint IS 'Start of the SHA-256 of the token, which tells it from a renewed one and nothing else.';
COMMENT ON COLUMN scm.credential_stops.reason IS 'One redacted line: what the server said and what to do.';
COMMENT ON COLUMN scm.credential_stops.stopped_at IS 'When it was first refused.';
COMMENT ON COLUMN scm.credential_stops.last_seen_at IS 'When it was last refused; an hour later one job tries again.';

-- Hints and settings of the deployment -------------------------------------------------------------------

ALTER TABLE scm.sync_hints ADD COLUMN activity_at timestamptz;
COMMENT ON COLUMN scm.sync_hints.activity_at IS 'GitLab: last activity of the project as the server says, which may lag an hour.';
ALTER TABLE scm.sync_watermarks ADD COLUMN activity_at timestamptz;
COMMENT ON COLUMN scm.sync_watermarks.activity_at IS 'GitLab: last activity of the project as seen at the last visit that succeeded; a later one in a hint makes it due.';
ALTER TABLE scm.deployment ADD COLUMN history_start date;
COMMENT ON COLUMN scm.deployment.history_start IS 'First day of the daily partitions: the oldest fact, never before the floor; only ever moved earlier.';

-- Jobs ---------------------------------------------------------------------------------------------------

ALTER TABLE scm.sync_jobs ADD COLUMN from_raw boolean NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN scm.sync_jobs.from_raw IS 'True: derives rows anew from their stored raw and asks no source. Covers nothing, and the scheduler never takes it up.';

-- Refs and commits ---------------------------------------------------------------------------------------

CREATE TABLE scm.ref_walks (
    walk_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id      bigint      NOT NULL REFERENCES scm.repos,
    tip          text        NOT NULL,
    covered      text,
    generation   bigint      NOT NULL,
    next_page    integer     NOT NULL DEFAULT 1,
    tip_read     boolean     NOT NULL DEFAULT FALSE,
    joined       boolean     NOT NULL DEFAULT FALSE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz,
    UNIQUE NULLS NOT DISTINCT (repo_id, tip, covered, generation)
);
COMMENT ON TABLE scm.ref_walks IS 'Readings of everything that is reachable from a commit. One that was interrupted goes on at its next page.';
COMMENT ON COLUMN scm.ref_walks.walk_id IS 'Key of the walk.';
COMMENT ON COLUMN scm.ref_walks.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.ref_walks.tip IS 'The commit it begins at.';
COMMENT ON COLUMN scm.ref_walks.covered IS 'A commit whose history was complete before and is left out; NULL: to the root.';
COMMENT ON COLUMN scm.ref_walks.generation IS 'Generation of the watermark; walks of an older one prove nothing.';
COMMENT ON COLUMN scm.ref_walks.next_page IS 'Page at which it goes on.';
COMMENT ON COLUMN scm.ref_walks.tip_read IS 'True once the tip itself was in a page.';
COMMENT ON COLUMN scm.ref_walks.joined IS 'True once a commit had the covered one as a parent; a complete walk without it is a force push.';
COMMENT ON COLUMN scm.ref_walks.created_at IS 'When it began.';
COMMENT ON COLUMN scm.ref_walks.completed_at IS 'When its last page was stored: from then on everything reachable from its commits is stored.';

CREATE TABLE scm.refs (
    repo_id       bigint      NOT NULL REFERENCES scm.repos,
    kind          text        NOT NULL CHECK (kind IN ('branch', 'tag')),
    name          text        NOT NULL,
    tip           text        NOT NULL,
    target        text        NOT NULL,
    judged_tip    text        NOT NULL,
    covered_tip   text,
    is_default    boolean     NOT NULL,
    is_protected  boolean     NOT NULL,
    tagged_at     timestamptz,
    message       text,
    flags         text[]      NOT NULL DEFAULT '{}',
    raw           jsonb       NOT NULL,
    batch_id      bigint      NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    moved_at      timestamptz NOT NULL DEFAULT now(),
    deleted_at    timestamptz,
    PRIMARY KEY (repo_id, kind, name)
);
COMMENT ON TABLE scm.refs IS 'Every branch and tag at the latest complete listing; deleted ones keep their row.';
COMMENT ON COLUMN scm.refs.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.refs.kind IS 'branch or tag.';
COMMENT ON COLUMN scm.refs.name IS 'Name without refs/heads/ or refs/tags/.';
COMMENT ON COLUMN scm.refs.tip IS 'The commit it leads to.';
COMMENT ON COLUMN scm.refs.target IS 'The object it names: the tag object of an annotated tag, else the commit.';
COMMENT ON COLUMN scm.refs.judged_tip IS 'Tip at the latest judged move; differs from tip while it is not known whether the move was forced.';
COMMENT ON COLUMN scm.refs.covered_tip IS 'The latest tip of it whose whole history is stored; equal to tip when nothing is missing.';
COMMENT ON COLUMN scm.refs.is_default IS 'True for the default branch.';
COMMENT ON COLUMN scm.refs.is_protected IS 'True if the server protects it.';
COMMENT ON COLUMN scm.refs.tagged_at IS 'When an annotated tag was made.';
COMMENT ON COLUMN scm.refs.message IS 'Message of an annotated tag.';
COMMENT ON COLUMN scm.refs.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.refs.raw IS 'The source''s object, secrets removed.';
COMMENT ON COLUMN scm.refs.batch_id IS 'The batch that wrote this version.';
COMMENT ON COLUMN scm.refs.first_seen_at IS 'When it was first stored.';
COMMENT ON COLUMN scm.refs.moved_at IS 'When its tip was last seen to change.';
COMMENT ON COLUMN scm.refs.deleted_at IS 'When a complete listing no longer had it; NULL while it exists.';

CREATE TABLE scm.ref_events (
    event_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id     bigint      NOT NULL REFERENCES scm.repos,
    kind        text        NOT NULL,
    name        text        NOT NULL,
    event       text        NOT NULL CHECK (event IN ('created', 'moved', 'forced', 'deleted')),
    old_tip     text,
    new_tip     text,
    observed_at timestamptz,
    batch_id    bigint      NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CHECK ((event = 'created') = (old_tip IS NULL)),
    CHECK ((event = 'deleted') = (new_tip IS NULL))
);
CREATE INDEX ref_events_by_repo ON scm.ref_events (repo_id, event_id);
COMMENT ON TABLE scm.ref_events IS 'Append only: every change of a branch or tag between two listings. forced: the old tip is not reachable from the new one.';
COMMENT ON COLUMN scm.ref_events.event_id IS 'Order of the events.';
COMMENT ON COLUMN scm.ref_events.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.ref_events.kind IS 'branch or tag.';
COMMENT ON COLUMN scm.ref_events.name IS 'Name of the ref.';
COMMENT ON COLUMN scm.ref_events.event IS 'created (also after a deletion), moved (forward), forced, or deleted.';
COMMENT ON COLUMN scm.ref_events.old_tip IS 'Where it led before.';
COMMENT ON COLUMN scm.ref_events.new_tip IS 'Where it leads now.';
COMMENT ON COLUMN scm.ref_events.observed_at IS 'The server''s clock at the listing that showed it.';
COMMENT ON COLUMN scm.ref_events.batch_id IS 'The batch that wrote it.';
COMMENT ON COLUMN scm.ref_events.created_at IS 'When it was written.';
CREATE TRIGGER ref_events_append_only BEFORE UPDATE ON scm.ref_events
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_update();

CREATE TABLE scm.git_commits (
    git_commit_id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id           bigint      NOT NULL REFERENCES scm.repos,
    commit_sha        text        NOT NULL CHECK (commit_sha ~ '^[0-9a-f]{40}([0-9a-f]{24})?$'),
    parents           text[]      NOT NULL,
    author_name       text,
    author_email      text,
    author_raw        text        GENERATED ALWAYS AS (CASE WHEN author_name IS NOT NULL OR author_email IS NOT NULL
                                  THEN btrim(coalesce(author_name, '') || coalesce(' <' || author_email || '>', '')) END) STORED,
    authored_at       timestamptz,
    authored_raw      text,
    committer_name    text,
    committer_email   text,
    committed_at      timestamptz,
    committed_raw     text,
    ts                timestamptz GENERATED ALWAYS AS (coalesce(committed_at, authored_at)) STORED,
    title             text,
    message           text,
    additions         bigint,
    deletions         bigint,
    is_merge          boolean     NOT NULL GENERATED ALWAYS AS (cardinality(parents) > 1) STORED,
    is_bulk           boolean     NOT NULL GENERATED ALWAYS AS (coalesce(additions + deletions, 0) > 1000) STORED,
    bulk_reason       text        GENERATED ALWAYS AS (CASE WHEN coalesce(additions + deletions, 0) > 1000 THEN 'over_1000_lines' END) STORED,
    web_url           text,
    flags             text[]      NOT NULL DEFAULT '{}',
    raw               jsonb       NOT NULL,
    source_id         text        NOT NULL GENERATED ALWAYS AS ('git:' || repo_id || ':' || commit_sha) STORED,
    content_hash      bytea       NOT NULL,
    version           integer     NOT NULL DEFAULT 1,
    batch_id          bigint      NOT NULL,
    walk_id           bigint,
    unreachable_since timestamptz,
    deleted_at        timestamptz,
    first_seen_at     timestamptz NOT NULL DEFAULT now(),
    stored_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (repo_id, commit_sha)
);
CREATE INDEX git_commits_by_time ON scm.git_commits (ts);
COMMENT ON TABLE scm.git_commits IS 'One row per commit that any branch or tag ever reached.';
COMMENT ON COLUMN scm.git_commits.git_commit_id IS 'Key of the row.';
COMMENT ON COLUMN scm.git_commits.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.git_commits.commit_sha IS 'Name of the commit; with repo_id the natural key.';
COMMENT ON COLUMN scm.git_commits.parents IS 'Names of the parents, in order; none for a root.';
COMMENT ON COLUMN scm.git_commits.author_name IS 'Name of the author.';
COMMENT ON COLUMN scm.git_commits.author_email IS 'E-mail address of the author.';
COMMENT ON COLUMN scm.git_commits.author_raw IS 'Author as git writes it: Name <email>.';
COMMENT ON COLUMN scm.git_commits.authored_at IS 'When it was written, by the author''s clock; NULL where the date is none.';
COMMENT ON COLUMN scm.git_commits.authored_raw IS 'That date as received, with its own offset.';
COMMENT ON COLUMN scm.git_commits.committer_name IS 'Name of the committer.';
COMMENT ON COLUMN scm.git_commits.committer_email IS 'E-mail address of the committer.';
COMMENT ON COLUMN scm.git_commits.committed_at IS 'When it was committed, by the committer''s clock; may be any time at all.';
COMMENT ON COLUMN scm.git_commits.committed_raw IS 'That date as received, with its own offset.';
COMMENT ON COLUMN scm.git_commits.ts IS 'committed_at, else authored_at.';
COMMENT ON COLUMN scm.git_commits.title IS 'First line of the message.';
COMMENT ON COLUMN scm.git_commits.message IS 'The whole message.';
COMMENT ON COLUMN scm.git_commits.additions IS 'Lines added; NULL where the server could not count them yet.';
COMMENT ON COLUMN scm.git_commits.deletions IS 'Lines deleted; NULL where the server could not count them yet.';
COMMENT ON COLUMN scm.git_commits.is_merge IS 'True with more than one parent.';
COMMENT ON COLUMN scm.git_commits.is_bulk IS 'True over 1,000 changed lines.';
COMMENT ON COLUMN scm.git_commits.bulk_reason IS 'Why it counts as bulk, or NULL.';
COMMENT ON COLUMN scm.git_commits.web_url IS 'Its page at the source.';
COMMENT ON COLUMN scm.git_commits.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.git_commits.raw IS 'The source''s object, secrets removed, characters that jsonb refuses escaped.';
COMMENT ON COLUMN scm.git_commits.source_id IS 'git:<repo_id>:<sha>.';
COMMENT ON COLUMN scm.git_commits.content_hash IS 'SHA-256 over everything read; equal means unchanged.';
COMMENT ON COLUMN scm.git_commits.version IS 'Raised at every change.';
COMMENT ON COLUMN scm.git_commits.batch_id IS 'The batch that wrote this version.';
COMMENT ON COLUMN scm.git_commits.walk_id IS 'The walk that stored it; once that is complete, so is its history. NULL: read by date only.';
COMMENT ON COLUMN scm.git_commits.unreachable_since IS 'Since when no branch or tag reaches it; NULL while one does.';
COMMENT ON COLUMN scm.git_commits.deleted_at IS 'When it was confirmed gone from its source; NULL while it exists.';
COMMENT ON COLUMN scm.git_commits.first_seen_at IS 'When it was first stored.';
COMMENT ON COLUMN scm.git_commits.stored_at IS 'When this version was stored.';

-- Merge requests -----------------------------------------------------------------------------------------

CREATE TABLE scm.mrs (
    repo_id           bigint      NOT NULL REFERENCES scm.repos,
    iid               bigint      NOT NULL,
    mr_id             text        NOT NULL GENERATED ALWAYS AS (repo_id || ':' || iid) STORED,
    gitlab_id         bigint      NOT NULL,
    project_id        bigint      NOT NULL,
    status            text        NOT NULL CHECK (status IN ('open', 'closed', 'merged', 'locked')),
    title             text,
    description       text,
    is_draft          boolean,
    author_id         bigint,
    author_username   text,
    author_name       text,
    merged_by_id      bigint,
    merged_by_username text,
    closed_by_id      bigint,
    closed_by_username text,
    assignees         jsonb       NOT NULL DEFAULT '[]',
    reviewers         jsonb       NOT NULL DEFAULT '[]',
    labels            text[]      NOT NULL DEFAULT '{}',
    milestone         text,
    created_at        timestamptz,
    updated_at        timestamptz NOT NULL,
    merged_at         timestamptz,
    closed_at         timestamptz,
    prepared_at       timestamptz,
    source_project_id bigint,
    source_branch     text,
    target_branch     text,
    head_sha          text,
    merge_commit_sha  text,
    squash_commit_sha text,
    base_sha          text,
    start_sha         text,
    changes_count     text,
    user_notes_count  bigint,
    url               text,
    flags             text[]      NOT NULL DEFAULT '{}',
    raw               jsonb       NOT NULL,
    source_id         text        NOT NULL GENERATED ALWAYS AS ('mr:' || repo_id || ':' || iid) STORED,
    children_head     text,
    children_target   text,
    versions_hash     bytea,
    commits_hash      bytea,
    read_at           timestamptz NOT NULL DEFAULT now(),
    content_hash      bytea       NOT NULL,
    version           integer     NOT NULL DEFAULT 1,
    batch_id          bigint      NOT NULL,
    deleted_at        timestamptz,
    first_seen_at     timestamptz NOT NULL DEFAULT now(),
    stored_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (repo_id, iid),
    UNIQUE (mr_id)
);
CREATE INDEX mrs_by_time ON scm.mrs (updated_at);
CREATE INDEX mrs_by_creation ON scm.mrs (created_at);
CREATE INDEX mrs_open ON scm.mrs (repo_id) WHERE status = 'open';
COMMENT ON TABLE scm.mrs IS 'One row per merge request, as of its latest version seen.';
COMMENT ON COLUMN scm.mrs.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.mrs.iid IS 'Number within the project; with repo_id the natural key.';
COMMENT ON COLUMN scm.mrs.mr_id IS '<repo_id>:<iid>.';
COMMENT ON COLUMN scm.mrs.gitlab_id IS 'Number within the instance.';
COMMENT ON COLUMN scm.mrs.project_id IS 'Number of the project as the merge request says.';
COMMENT ON COLUMN scm.mrs.status IS 'open, closed, merged or locked (while it is being merged).';
COMMENT ON COLUMN scm.mrs.title IS 'Title.';
COMMENT ON COLUMN scm.mrs.description IS 'Description.';
COMMENT ON COLUMN scm.mrs.is_draft IS 'True while it is a draft.';
COMMENT ON COLUMN scm.mrs.author_id IS 'Account that opened it; NULL where it was deleted with nobody in its place.';
COMMENT ON COLUMN scm.mrs.author_username IS 'User name of the author when it was read.';
COMMENT ON COLUMN scm.mrs.author_name IS 'Name of the author when it was read.';
COMMENT ON COLUMN scm.mrs.merged_by_id IS 'Account that merged it.';
COMMENT ON COLUMN scm.mrs.merged_by_username IS 'User name of who merged it.';
COMMENT ON COLUMN scm.mrs.closed_by_id IS 'Account that closed it.';
COMMENT ON COLUMN scm.mrs.closed_by_username IS 'User name of who closed it.';
COMMENT ON COLUMN scm.mrs.assignees IS 'List of {id, username, name}.';
COMMENT ON COLUMN scm.mrs.reviewers IS 'List of {id, username, name}; states are in scm.mr_reviewers.';
COMMENT ON COLUMN scm.mrs.labels IS 'Names of the labels.';
COMMENT ON COLUMN scm.mrs.milestone IS 'Title of the milestone.';
COMMENT ON COLUMN scm.mrs.created_at IS 'When it was opened, at the source.';
COMMENT ON COLUMN scm.mrs.updated_at IS 'When it was last updated, at the source; a push does not always change it.';
COMMENT ON COLUMN scm.mrs.merged_at IS 'When it was merged; may be later than updated_at.';
COMMENT ON COLUMN scm.mrs.closed_at IS 'When it was closed.';
COMMENT ON COLUMN scm.mrs.prepared_at IS 'When the server had prepared it.';
COMMENT ON COLUMN scm.mrs.source_project_id IS 'Project of the source branch; another one for forks, NULL when that is gone.';
COMMENT ON COLUMN scm.mrs.source_branch IS 'Branch with the changes.';
COMMENT ON COLUMN scm.mrs.target_branch IS 'Branch to merge into.';
COMMENT ON COLUMN scm.mrs.head_sha IS 'Newest commit of it.';
COMMENT ON COLUMN scm.mrs.merge_commit_sha IS 'The merge commit.';
COMMENT ON COLUMN scm.mrs.squash_commit_sha IS 'The squashed commit.';
COMMENT ON COLUMN scm.mrs.base_sha IS 'Common ancestor that the difference is taken from.';
COMMENT ON COLUMN scm.mrs.start_sha IS 'Head of the target branch when the newest version was made.';
COMMENT ON COLUMN scm.mrs.changes_count IS 'Number of changed files; a text, such as 1000+ at the server''s cap.';
COMMENT ON COLUMN scm.mrs.user_notes_count IS 'Comments by people, as the server counts them.';
COMMENT ON COLUMN scm.mrs.url IS 'Its page at the source.';
COMMENT ON COLUMN scm.mrs.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.mrs.raw IS 'The source''s object of this version, secrets removed, characters that jsonb refuses escaped.';
COMMENT ON COLUMN scm.mrs.source_id IS 'mr:<repo_id>:<iid>.';
COMMENT ON COLUMN scm.mrs.children_head IS 'Head for which versions and commits are stored; NULL: not yet.';
COMMENT ON COLUMN scm.mrs.children_target IS 'Target branch for which versions and commits are stored.';
COMMENT ON COLUMN scm.mrs.versions_hash IS 'SHA-256 over its rows of scm.mr_versions; NULL: never read.';
COMMENT ON COLUMN scm.mrs.commits_hash IS 'SHA-256 over its rows of scm.mr_commits; NULL: never read.';
COMMENT ON COLUMN scm.mrs.read_at IS 'When it was last asked for, changed or not.';
COMMENT ON COLUMN scm.mrs.content_hash IS 'SHA-256 over everything read that is no volatile check and that not only its versions say (base_sha, start_sha, changes_count).';
COMMENT ON COLUMN scm.mrs.version IS 'Raised at every change.';
COMMENT ON COLUMN scm.mrs.batch_id IS 'The batch that wrote this version.';
COMMENT ON COLUMN scm.mrs.deleted_at IS 'When it was confirmed gone from its source; NULL while it exists.';
COMMENT ON COLUMN scm.mrs.first_seen_at IS 'When it was first stored.';
COMMENT ON COLUMN scm.mrs.stored_at IS 'When this version was stored.';

CREATE TABLE scm.mr_versions (
    repo_id    bigint NOT NULL,
    mr_iid     bigint NOT NULL,
    version_id bigint NOT NULL,
    head_sha   text,
    base_sha   text,
    start_sha  text,
    created_at timestamptz,
    state      text,
    size       text,
    patch_id   text,
    flags      text[] NOT NULL DEFAULT '{}',
    raw        jsonb  NOT NULL,
    PRIMARY KEY (repo_id, mr_iid, version_id),
    FOREIGN KEY (repo_id, mr_iid) REFERENCES scm.mrs ON DELETE CASCADE
);
COMMENT ON TABLE scm.mr_versions IS 'What each push made of a merge request; replaced as a set.';
COMMENT ON COLUMN scm.mr_versions.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.mr_versions.mr_iid IS 'The merge request.';
COMMENT ON COLUMN scm.mr_versions.version_id IS 'Number of the version at the source; grows.';
COMMENT ON COLUMN scm.mr_versions.head_sha IS 'Head of the source branch.';
COMMENT ON COLUMN scm.mr_versions.base_sha IS 'Common ancestor.';
COMMENT ON COLUMN scm.mr_versions.start_sha IS 'Head of the target branch.';
COMMENT ON COLUMN scm.mr_versions.created_at IS 'When it was made.';
COMMENT ON COLUMN scm.mr_versions.state IS 'State of its difference, as the source says.';
COMMENT ON COLUMN scm.mr_versions.size IS 'Number of changed files; a text, such as 1000+ at the cap.';
COMMENT ON COLUMN scm.mr_versions.patch_id IS 'Identity of the difference itself.';
COMMENT ON COLUMN scm.mr_versions.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.mr_versions.raw IS 'The source''s object, secrets removed.';

CREATE TABLE scm.mr_commits (
    repo_id         bigint  NOT NULL,
    mr_iid          bigint  NOT NULL,
    position        integer NOT NULL,
    commit_sha      text    NOT NULL,
    title           text,
    message         text,
    author_name     text,
    author_email    text,
    authored_at     timestamptz,
    committer_name  text,
    committer_email text,
    committed_at    timestamptz,
    flags           text[]  NOT NULL DEFAULT '{}',
    raw             jsonb   NOT NULL,
    PRIMARY KEY (repo_id, mr_iid, position),
    FOREIGN KEY (repo_id, mr_iid) REFERENCES scm.mrs ON DELETE CASCADE
);
CREATE INDEX mr_commits_by_sha ON scm.mr_commits (repo_id, commit_sha);
COMMENT ON TABLE scm.mr_commits IS 'The commits of a merge request, also those of forks and of deleted branches; replaced as a set.';
COMMENT ON COLUMN scm.mr_commits.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.mr_commits.mr_iid IS 'The merge request.';
COMMENT ON COLUMN scm.mr_commits.position IS 'Place in the source''s list, from 1, newest first.';
COMMENT ON COLUMN scm.mr_commits.commit_sha IS 'Name of the commit.';
COMMENT ON COLUMN scm.mr_commits.title IS 'First line of the message.';
COMMENT ON COLUMN scm.mr_commits.message IS 'The whole message.';
COMMENT ON COLUMN scm.mr_commits.author_name IS 'Name of the author.';
COMMENT ON COLUMN scm.mr_commits.author_email IS 'E-mail address of the author.';
COMMENT ON COLUMN scm.mr_commits.authored_at IS 'When it was written.';
COMMENT ON COLUMN scm.mr_commits.committer_name IS 'Name of the committer.';
COMMENT ON COLUMN scm.mr_commits.committer_email IS 'E-mail address of the committer.';
COMMENT ON COLUMN scm.mr_commits.committed_at IS 'When it was committed.';
COMMENT ON COLUMN scm.mr_commits.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.mr_commits.raw IS 'The source''s object, secrets removed.';

-- Reviews ------------------------------------------------------------------------------------------------

CREATE TABLE scm.mr_reviews (
    repo_id       bigint      NOT NULL REFERENCES scm.repos,
    mr_iid        bigint      NOT NULL,
    mr_updated_at timestamptz NOT NULL,
    whole         text[]      NOT NULL,
    batch_id      bigint      NOT NULL,
    read_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (repo_id, mr_iid)
);
COMMENT ON TABLE scm.mr_reviews IS 'When the review of a merge request was last read, and how completely.';
COMMENT ON COLUMN scm.mr_reviews.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.mr_reviews.mr_iid IS 'The merge request.';
COMMENT ON COLUMN scm.mr_reviews.mr_updated_at IS 'updated_at of the merge request at that reading.';
COMMENT ON COLUMN scm.mr_reviews.whole IS 'Origins of events, and the sets approvals and reviewers, that were read to their end.';
COMMENT ON COLUMN scm.mr_reviews.batch_id IS 'The batch that wrote it.';
COMMENT ON COLUMN scm.mr_reviews.read_at IS 'When.';

CREATE TABLE scm.review_events (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id          bigint      NOT NULL REFERENCES scm.repos,
    mr_iid           bigint      NOT NULL,
    mr_id            text        NOT NULL GENERATED ALWAYS AS (repo_id || ':' || mr_iid) STORED,
    source_event_id  text        NOT NULL,
    origin           text        NOT NULL CHECK (origin IN ('note', 'state', 'label', 'milestone')),
    event_type       text        NOT NULL,
    reviewer_id      bigint,
    reviewer_username text,
    reviewer_name    text,
    ts               timestamptz,
    updated_at       timestamptz,
    body             text,
    is_system        boolean     NOT NULL,
    is_internal      boolean     NOT NULL,
    discussion_id    text,
    is_reply         boolean     NOT NULL,
    resolvable       boolean     NOT NULL,
    resolved         boolean,
    resolved_by_id   bigint,
    resolved_by_username text,
    resolved_at      timestamptz,
    position         jsonb,
    details          jsonb       NOT NULL DEFAULT '{}',
    duplicate_of     text,
    flags            text[]      NOT NULL DEFAULT '{}',
    raw              jsonb       NOT NULL,
    content_hash     bytea       NOT NULL,
    version          integer     NOT NULL DEFAULT 1,
    batch_id         bigint      NOT NULL,
    missing_since    timestamptz,
    deleted_at       timestamptz,
    first_seen_at    timestamptz NOT NULL DEFAULT now(),
    stored_at        timestamptz NOT NULL DEFAULT now(),
    -- No foreign key to scm.mrs: reviews may be read without merge requests.
    UNIQUE (repo_id, mr_iid, source_event_id)
);
CREATE INDEX review_events_by_time ON scm.review_events (ts);
COMMENT ON TABLE scm.review_events IS 'One row per thing that happened in a review.';
COMMENT ON COLUMN scm.review_events.id IS 'Key of the row.';
COMMENT ON COLUMN scm.review_events.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.review_events.mr_iid IS 'The merge request.';
COMMENT ON COLUMN scm.review_events.mr_id IS '<repo_id>:<iid>, as in scm.mrs.';
COMMENT ON COLUMN scm.review_events.source_event_id IS '<origin>:<number>; never changes.';
COMMENT ON COLUMN scm.review_events.origin IS 'Which kind of object of the source is its record: note, state, label or milestone.';
COMMENT ON COLUMN scm.review_events.event_type IS 'comment, code_comment, approve, unapprove, push, merge, close, reopen, label, milestone, system and more.';
COMMENT ON COLUMN scm.review_events.reviewer_id IS 'Account that did it; NULL where it is gone.';
COMMENT ON COLUMN scm.review_events.reviewer_username IS 'Its user name when it was read.';
COMMENT ON COLUMN scm.review_events.reviewer_name IS 'Its name when it was read.';
COMMENT ON COLUMN scm.review_events.ts IS 'When it happened.';
COMMENT ON COLUMN scm.review_events.updated_at IS 'When it was last edited at the source.';
COMMENT ON COLUMN scm.review_events.body IS 'Text of a note.';
COMMENT ON COLUMN scm.review_events.is_system IS 'True for what the server wrote.';
COMMENT ON COLUMN scm.review_events.is_internal IS 'True for a note that only members see.';
COMMENT ON COLUMN scm.review_events.discussion_id IS 'The thread of a note.';
COMMENT ON COLUMN scm.review_events.is_reply IS 'True if it is not the first of its thread.';
COMMENT ON COLUMN scm.review_events.resolvable IS 'True if it can be resolved.';
COMMENT ON COLUMN scm.review_events.resolved IS 'True once it is resolved; NULL where it cannot be.';
COMMENT ON COLUMN scm.review_events.resolved_by_id IS 'Account that resolved it.';
COMMENT ON COLUMN scm.review_events.resolved_by_username IS 'User name of who resolved it.';
COMMENT ON COLUMN scm.review_events.resolved_at IS 'When it was resolved.';
COMMENT ON COLUMN scm.review_events.position IS 'Place of a code comment: commits, paths, lines.';
COMMENT ON COLUMN scm.review_events.details IS 'What is special to the kind: people added and removed, the label, the number of commits.';
COMMENT ON COLUMN scm.review_events.duplicate_of IS 'source_event_id of the event that tells the same fact; such a note has the type system.';
COMMENT ON COLUMN scm.review_events.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.review_events.raw IS 'The source''s object, secrets removed, characters that jsonb refuses escaped.';
COMMENT ON COLUMN scm.review_events.content_hash IS 'SHA-256 over everything read; equal means unchanged.';
COMMENT ON COLUMN scm.review_events.version IS 'Raised at every change.';
COMMENT ON COLUMN scm.review_events.batch_id IS 'The batch that wrote this version.';
COMMENT ON COLUMN scm.review_events.missing_since IS 'Since when whole readings of its origin do not show it; NULL while they do.';
COMMENT ON COLUMN scm.review_events.deleted_at IS 'When it was confirmed gone from its source; NULL while it exists.';
COMMENT ON COLUMN scm.review_events.first_seen_at IS 'When it was first stored.';
COMMENT ON COLUMN scm.review_events.stored_at IS 'When this version was stored.';

CREATE TABLE scm.mr_approvals (
    approval_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id      bigint      NOT NULL REFERENCES scm.repos,
    mr_iid       bigint      NOT NULL,
    person       text        NOT NULL,
    user_id      bigint,
    username     text,
    name         text,
    approved_at  timestamptz,
    time_source  text        CHECK (time_source IN ('approval', 'note')),
    batch_id     bigint      NOT NULL,
    seen_from    timestamptz NOT NULL DEFAULT now(),
    closed_at    timestamptz
);
CREATE UNIQUE INDEX mr_approvals_one_open ON scm.mr_approvals (repo_id, mr_iid, person) WHERE closed_at IS NULL;
COMMENT ON TABLE scm.mr_approvals IS 'Approvals in force, and those that were; one that was taken away is closed, not deleted.';
COMMENT ON COLUMN scm.mr_approvals.approval_id IS 'Key of the row.';
COMMENT ON COLUMN scm.mr_approvals.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.mr_approvals.mr_iid IS 'The merge request.';
COMMENT ON COLUMN scm.mr_approvals.person IS 'user_id as text, else the user name.';
COMMENT ON COLUMN scm.mr_approvals.user_id IS 'Account that approves.';
COMMENT ON COLUMN scm.mr_approvals.username IS 'Its user name when it was read.';
COMMENT ON COLUMN scm.mr_approvals.name IS 'Its name when it was read.';
COMMENT ON COLUMN scm.mr_approvals.approved_at IS 'When it was given; NULL where no time is known. Never the time of reading.';
COMMENT ON COLUMN scm.mr_approvals.time_source IS 'approval (the server says) or note (the person''s last approving note); NULL: unknown.';
COMMENT ON COLUMN scm.mr_approvals.batch_id IS 'The batch that last wrote it.';
COMMENT ON COLUMN scm.mr_approvals.seen_from IS 'When it was first seen.';
COMMENT ON COLUMN scm.mr_approvals.closed_at IS 'When a reading no longer had it; NULL while it is in force.';

CREATE TABLE scm.mr_reviewers (
    reviewer_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id      bigint      NOT NULL REFERENCES scm.repos,
    mr_iid       bigint      NOT NULL,
    person       text        NOT NULL,
    user_id      bigint,
    username     text,
    name         text,
    state        text,
    requested_at timestamptz,
    batch_id     bigint      NOT NULL,
    seen_from    timestamptz NOT NULL DEFAULT now(),
    closed_at    timestamptz
);
CREATE UNIQUE INDEX mr_reviewers_one_open ON scm.mr_reviewers (repo_id, mr_iid, person) WHERE closed_at IS NULL;
COMMENT ON TABLE scm.mr_reviewers IS 'Who is asked for a review, and who was; one that was taken back is closed, not deleted.';
COMMENT ON COLUMN scm.mr_reviewers.reviewer_id IS 'Key of the row.';
COMMENT ON COLUMN scm.mr_reviewers.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.mr_reviewers.mr_iid IS 'The merge request.';
COMMENT ON COLUMN scm.mr_reviewers.person IS 'user_id as text, else the user name.';
COMMENT ON COLUMN scm.mr_reviewers.user_id IS 'Account that is asked.';
COMMENT ON COLUMN scm.mr_reviewers.username IS 'Its user name when it was read.';
COMMENT ON COLUMN scm.mr_reviewers.name IS 'Its name when it was read.';
COMMENT ON COLUMN scm.mr_reviewers.state IS 'State of the review in the source''s words; an open set.';
COMMENT ON COLUMN scm.mr_reviewers.requested_at IS 'When it was asked for.';
COMMENT ON COLUMN scm.mr_reviewers.batch_id IS 'The batch that last wrote it.';
COMMENT ON COLUMN scm.mr_reviewers.seen_from IS 'When it was first seen.';
COMMENT ON COLUMN scm.mr_reviewers.closed_at IS 'When a reading no longer had it; NULL while it is in force.';

-- Facts for readers --------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW scm.v_facts AS
SELECT 'svn'::text AS source_type,
       r.source_id,
       r.repo_id,
       r.ts,
       r.author_raw,
       a.user_id AS author_user_id,
       r.is_bulk,
       r.bulk_reason,
       r.meta_json
         || jsonb_build_object('rev_num', r.rev_num, 'path_count', r.path_count, 'visibility', r.visibility)
         AS meta_json
  FROM scm.svn_revisions AS r
  LEFT JOIN identity.accounts AS a ON a.account_type = 'svn' AND a.account_name = r.author_raw
 WHERE r.deleted_at IS NULL
UNION ALL
SELECT 'git', c.source_id, c.repo_id, c.ts, c.author_raw, a.user_id, c.is_bulk, c.bulk_reason,
       jsonb_build_object('sha', c.commit_sha, 'parent_ids', c.parents, 'is_merge', c.is_merge,
                          'author_email', c.author_email, 'authored_at', c.authored_at,
                          'committer_name', c.committer_name, 'committer_email', c.committer_email,
                          'additions', c.additions, 'deletions', c.deletions, 'web_url', c.web_url,
                          'unreachable_since', c.unreachable_since)
  FROM scm.git_commits AS c
  LEFT JOIN identity.accounts AS a ON a.account_type = 'email' AND a.account_name = c.author_email
 WHERE c.deleted_at IS NULL
UNION ALL
SELECT 'mr', m.source_id, m.repo_id, m.created_at, m.author_username, a.user_id, FALSE, NULL,
       jsonb_build_object('iid', m.iid, 'status', m.status, 'title', m.title,
                          'source_branch', m.source_branch, 'target_branch', m.target_branch,
                          'labels', m.labels, 'updated_at', m.updated_at, 'merged_at', m.merged_at,
                          'closed_at', m.closed_at, 'head_sha', m.head_sha,
                          'merge_commit_sha', m.merge_commit_sha, 'squash_commit_sha', m.squash_commit_sha,
                          'assignees', m.assignees, 'reviewers', m.reviewers, 'url', m.url)
  FROM scm.mrs AS m
  LEFT JOIN identity.accounts AS a ON a.account_type = 'gitlab' AND a.account_name = m.author_username
 WHERE m.deleted_at IS NULL;
COMMENT ON VIEW scm.v_facts IS 'Every fact of every source in one shape, without tombstones: SVN revisions, commits, merge requests.';
COMMENT ON COLUMN scm.v_facts.source_type IS 'Which kind of fact: svn, git or mr.';
COMMENT ON COLUMN scm.v_facts.author_raw IS 'Author as the source writes it: a name, Name <email>, or a user name.';
