"""What the places say to each other: driver, agents and workers."""
