-- Names of servers and repositories. Every row keeps its value: instance_slug and slug are the keys of the assets in
-- Dagster, and with them the history there. Repositories that are registered from now on get shorter ones.
-- depends: 0007.faults

COMMENT ON COLUMN scm.repos.instance_slug IS 'Alias of the server: first part of the Dagster asset keys of its repositories, and in the names of their ops, pools and sensors. Fixed when the first repository of the server is registered; a later setting name changes labels only.';
COMMENT ON COLUMN scm.repos.slug IS 'Second part of the Dagster asset key: the path in a-z, 0-9 and _, with __ for /, and the number of the project or repository only where another one has the same. Fixed at registration; before 0.7.0 always with the number.';
