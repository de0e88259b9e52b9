"""The coordinator: owns the truth. `service` composes it, `ledger` keeps it."""
