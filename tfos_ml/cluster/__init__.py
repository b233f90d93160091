"""One cluster as one barrier job: from roles to running processes and back."""
