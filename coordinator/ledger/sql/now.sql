SELECT tandem_now() AS now, current_setting('transaction_read_only')::boolean AS read_only
