SELECT tandem_now() AS now
