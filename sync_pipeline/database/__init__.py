"""PostgreSQL itself: the connection pool, migrations, schema checks, conversions. Knows no table of ours."""
