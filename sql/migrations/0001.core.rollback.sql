-- Removes everything that the core migration made. The role scm_reader stays: other databases may use it.
ALTER DEFAULT PRIVILEGES IN SCHEMA scm REVOKE SELECT ON TABLES FROM scm_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA identity REVOKE SELECT ON TABLES FROM scm_reader;
DROP SCHEMA scm CASCADE;
DROP SCHEMA identity CASCADE;
