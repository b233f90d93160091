"""One run, on the driver: started, watched, cancelled and closed."""
