SELECT source FROM job WHERE id = $1
