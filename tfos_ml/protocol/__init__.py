"""What driver, agents and workers send to each other."""
