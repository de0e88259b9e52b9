SELECT id, state, lane, epoch, worker, offered_at, offered_seq, spent_seq FROM job WHERE id = ANY ($1::uuid[])
