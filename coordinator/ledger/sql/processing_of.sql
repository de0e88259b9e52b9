SELECT id, epoch FROM job WHERE state = 'processing' AND worker = $1 ORDER BY id
