"""The versions, in the order of their revisions."""
