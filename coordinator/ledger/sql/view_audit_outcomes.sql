-- What the ledger has for the jobs ($1) and epochs ($2) that messages of RESULTS name. By primary keys.
SELECT named.job_id, named.epoch, j.epoch AS newest, j.state, j.unpublished, a.outcome
FROM unnest($1::uuid[], $2::bigint[]) AS named (job_id, epoch)
LEFT JOIN job AS j ON j.id = named.job_id
LEFT JOIN attempt AS a ON a.job_id = named.job_id AND a.epoch = named.epoch
