"""Decides with the policy what runs next and starts it: plan, worker, reaper, resync, comparisons."""
