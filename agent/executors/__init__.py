"""Executors: plugins that run jobs on a generator (entry points `tandem.executors`; `base` is their contract)."""
