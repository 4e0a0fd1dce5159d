-- Forgets the changed paths of earlier versions; the versions and what is stored now stay.
DROP TABLE scm.svn_path_versions;
COMMENT ON COLUMN scm.svn_revisions.flags IS 'What had to be mended to store it: invalid_utf8, control_characters, nul, bad_date.';
