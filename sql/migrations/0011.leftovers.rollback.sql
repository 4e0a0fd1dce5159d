-- Forgets which tokens saw internal notes.
ALTER TABLE scm.mr_reviews DROP COLUMN saw_internal;
