-- Forgets the changed paths of earlier versions; the versions and what is stored now stay.
DROP TABLE scm.svn_path_versions;
