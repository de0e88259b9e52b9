INSERT INTO rejected_submission (source, at, code, reason, faults, body, size)
VALUES ($1, tandem_now(), $2, $3, $4, $5, $6)
