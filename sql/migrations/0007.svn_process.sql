-- Why a person changed a repository as a whole, such as its address.
-- depends: 0006.operators
ALTER TABLE scm.repo_events ADD COLUMN reason text;
COMMENT ON COLUMN scm.repo_events.reason IS 'Why, in the words of the person who did it; NULL where nobody was asked.';
