"""Types, errors, texts and windows that every other package uses. It imports no other package of ours."""
