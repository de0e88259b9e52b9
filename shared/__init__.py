"""Tandem's shared vocabulary and pure rules; imports neither `coordinator` nor `agent`.

    publisher ──SUBMIT──► coordinator ──WORK──► agent ──heartbeats, REPORTS──► coordinator ──RESULTS──► publisher
                              │                                                    │
                              └──────────────── the ledger (Postgres) ─────────────┘

The words: a *job* waits on a *lane* until a *worker* *claims* it. A granted claim is an *attempt* with a *lease* and
an *epoch*, the fencing token. *Heartbeats* extend the lease; a *report* ends the attempt. Read on in `states`,
`subjects`, `lease`, then `coordinator.ledger.transitions`.
"""
