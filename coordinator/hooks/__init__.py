"""Hooks: what a CMS posts to `/hooks/{source}` becomes submissions.

`config` reads what is configured, `checks` tells whether an event is from its source, `mapping` what it becomes (in a
process of its own, `mapper`, which bounds what a template may cost), `hooks` takes one event through all of it.
"""
