"""What every other package builds on: types, errors, texts, windows. Imports nothing else of ours."""
