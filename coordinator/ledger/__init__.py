"""The lease ledger: `transitions` decides, `ledger` writes, `queries` read."""
