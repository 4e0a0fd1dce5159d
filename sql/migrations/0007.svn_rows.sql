-- The changed paths of earlier versions of revisions, and what the flags of a revision mean now. Additive.
-- depends: 0006.operators

CREATE TABLE scm.svn_path_versions (
    repo_id       bigint  NOT NULL,
    rev_num       bigint  NOT NULL,
    version       integer NOT NULL,
    path_no       integer NOT NULL,
    path          text    NOT NULL,
    action        text    NOT NULL,
    kind          text,
    copyfrom_path text,
    copyfrom_rev  bigint,
    text_mods     boolean,
    prop_mods     boolean,
    PRIMARY KEY (repo_id, rev_num, version, path_no)
);
COMMENT ON TABLE scm.svn_path_versions IS 'The changed paths of the rows of scm.svn_revision_versions. Versions that 0.5.0 and earlier kept have none.';
COMMENT ON COLUMN scm.svn_path_versions.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.svn_path_versions.rev_num IS 'The revision.';
COMMENT ON COLUMN scm.svn_path_versions.version IS 'Number of the version, from 1.';
COMMENT ON COLUMN scm.svn_path_versions.path_no IS 'Position in the revision, from 1, in the order the server gave.';
COMMENT ON COLUMN scm.svn_path_versions.path IS 'Absolute path from the repository root.';
COMMENT ON COLUMN scm.svn_path_versions.action IS 'A added, D deleted, M modified, R replaced.';
COMMENT ON COLUMN scm.svn_path_versions.kind IS 'file or dir; NULL where the server did not say.';
COMMENT ON COLUMN scm.svn_path_versions.copyfrom_path IS 'Where it was copied from, or NULL.';
COMMENT ON COLUMN scm.svn_path_versions.copyfrom_rev IS 'Revision it was copied from, or NULL.';
COMMENT ON COLUMN scm.svn_path_versions.text_mods IS 'True if the content changed; NULL where unknown.';
COMMENT ON COLUMN scm.svn_path_versions.prop_mods IS 'True if properties changed; NULL where unknown.';

COMMENT ON COLUMN scm.svn_revisions.flags IS 'What had to be mended to store it: invalid_utf8, control_characters, nul, bad_date; what was not read: changed_paths_unread, message_unread; where http may have changed a CR or TAB: line_ends_unsure, paths_unsure.';
