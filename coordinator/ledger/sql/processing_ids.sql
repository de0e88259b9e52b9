SELECT id FROM job WHERE state = 'processing' ORDER BY id
