"""What makes a step of one worker that of all rows."""
