-- Statements of sync_pipeline/facts/people.py. They store people and their accounts (``identity.users`` and
-- ``identity.accounts``).

-- name: lock
-- Locks the accounts, because two programs could create the same person at once.
LOCK TABLE identity.accounts IN SHARE ROW EXCLUSIVE MODE

-- name: is_known
-- Returns whether one of the accounts exists.
SELECT FROM identity.accounts AS a
  JOIN unnest(%(types)s::text[], %(names)s::text[]) AS s (type, name)
    ON (a.account_type, a.account_name) = (s.type, s.name)

-- name: put
-- Creates a person with these accounts.
WITH person AS (INSERT INTO identity.users (display_name) VALUES (%(name)s) RETURNING user_id)
INSERT INTO identity.accounts (user_id, account_type, account_name, verified)
SELECT person.user_id, s.type, s.name, TRUE
  FROM person, unnest(%(types)s::text[], %(names)s::text[]) AS s (type, name)
