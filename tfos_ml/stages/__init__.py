"""What users put into a Pipeline."""
