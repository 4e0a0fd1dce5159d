"""The environment the program runs in: the embedded PostgreSQL server and DAGSTER_HOME."""
