"""The agent: one process on each Mac, which takes jobs, runs them, and brings each result back.

    presence ─► lanes ─► puller ─► runner: claim ─► executor beside heartbeats ─► spool ─► upload ─► report ─► verdict
                                           ├────────── the slot is busy ────────────────┤┄┄┄┄┄┄┄ free again ┄┄┄┄┄┄┄┤

Read `runner` first: a job's life from top to bottom. `leases` is what is held, `reporter` is how a finished result
gets to the ledger, `service` puts it all together. Nothing here decides who owns a job: the ledger does.
"""
