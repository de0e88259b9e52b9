-- A report that could not be read.
INSERT INTO rejected_result (job_id, worker, verdict, reason, current_epoch, at, report)
VALUES ($1, $2, 'rejected', $3, 0, tandem_now(), $4)
