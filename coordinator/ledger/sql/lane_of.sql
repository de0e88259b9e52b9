SELECT lane FROM job WHERE id = $1
