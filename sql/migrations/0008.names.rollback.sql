COMMENT ON COLUMN scm.repos.instance_slug IS 'First part of the Dagster asset key; fixed at registration.';
COMMENT ON COLUMN scm.repos.slug IS 'Second part of the Dagster asset key; fixed at registration.';
