"""``python -m sync_pipeline.cli`` is ``scm-sync``."""

from sync_pipeline.cli import main

if __name__ == "__main__":
    main()
