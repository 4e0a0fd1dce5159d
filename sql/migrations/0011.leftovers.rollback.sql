-- Forgets which revisions the source hides by now; their content stays.
ALTER TABLE scm.svn_revisions DROP COLUMN hidden_since;

-- Forgets which tokens saw internal notes.
ALTER TABLE scm.mr_reviews DROP COLUMN saw_internal;
