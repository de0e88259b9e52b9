SELECT kind, lane, model, models FROM job WHERE id = $1
