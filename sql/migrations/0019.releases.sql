-- Releases of GitLab as an optional job type: repositories that are registered get it only when somebody asks for it.
-- No table is rewritten.
-- depends: 0018.found_rates

ALTER TABLE scm.repos ADD COLUMN optional_job_types text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN scm.repos.optional_job_types IS 'Optional job types that are synced beside those of every repository of its kind.';
ALTER TABLE scm.repo_events
    DROP CONSTRAINT repo_events_event_check,
    ADD CONSTRAINT repo_events_event_check
        CHECK (event IN ('registered', 'moved', 'tenant', 'job_types', 'default_branch', 'archived', 'unarchived',
                         'pending_deletion', 'restored', 'vanished', 'returned', 'retired', 'reactivated'));
ALTER TABLE scm.job_types ADD COLUMN optional boolean NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN scm.job_types.optional IS 'Only repositories that name it in optional_job_types have it.';

CREATE TABLE scm.releases (
    release_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id         bigint      NOT NULL REFERENCES scm.repos,
    tag             text        COLLATE "C" NOT NULL,
    name            text,
    description     text,
    commit_sha      text        COLLATE "C",
    created_at      timestamptz,
    released_at     timestamptz,
    author_id       bigint,
    author_username text,
    author_name     text,
    milestones      text[]      NOT NULL DEFAULT '{}',
    assets_count    bigint,
    asset_links     jsonb       NOT NULL DEFAULT '[]',
    flags           text[]      NOT NULL DEFAULT '{}',
    raw             jsonb       NOT NULL,
    content_hash    bytea       NOT NULL,
    version         integer     NOT NULL DEFAULT 1,
    batch_id        bigint      NOT NULL,
    deleted_at      timestamptz,
    first_seen_at   timestamptz NOT NULL DEFAULT now(),
    stored_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (repo_id, tag)
);
COMMENT ON TABLE scm.releases IS 'One row per release of a project, of the repositories that sync releases.';
COMMENT ON COLUMN scm.releases.release_id IS 'Key of the row.';
COMMENT ON COLUMN scm.releases.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.releases.tag IS 'The tag that was released; with repo_id the natural key.';
COMMENT ON COLUMN scm.releases.name IS 'Name of the release.';
COMMENT ON COLUMN scm.releases.description IS 'Description in Markdown.';
COMMENT ON COLUMN scm.releases.commit_sha IS 'The commit of the tag; NULL: the token cannot see it.';
COMMENT ON COLUMN scm.releases.created_at IS 'When the release was made in GitLab.';
COMMENT ON COLUMN scm.releases.released_at IS 'The date that its author gave it, which may be in the future.';
COMMENT ON COLUMN scm.releases.author_id IS 'Account of the author.';
COMMENT ON COLUMN scm.releases.author_username IS 'User name of the author.';
COMMENT ON COLUMN scm.releases.author_name IS 'Name of the author.';
COMMENT ON COLUMN scm.releases.milestones IS 'Titles of its milestones.';
COMMENT ON COLUMN scm.releases.assets_count IS 'How many assets it has: source archives and links.';
COMMENT ON COLUMN scm.releases.asset_links IS 'Its asset links: id, name, url and type of each.';
COMMENT ON COLUMN scm.releases.flags IS 'Repairs that were needed to store it.';
COMMENT ON COLUMN scm.releases.raw IS 'The source''s object, secrets removed, characters that jsonb refuses escaped.';
COMMENT ON COLUMN scm.releases.content_hash IS 'SHA-256 over the columns that were read; equal means unchanged.';
COMMENT ON COLUMN scm.releases.version IS 'Raised at every change.';
COMMENT ON COLUMN scm.releases.batch_id IS 'The batch that wrote this version.';
COMMENT ON COLUMN scm.releases.deleted_at IS 'When it was confirmed gone from its source; NULL while it exists.';
COMMENT ON COLUMN scm.releases.first_seen_at IS 'When it was first stored.';
COMMENT ON COLUMN scm.releases.stored_at IS 'When this version was stored.';

INSERT INTO scm.job_types (job_type, kind, family, by_time, optional)
VALUES ('releases', 'gitlab', 'releases', FALSE, TRUE);
