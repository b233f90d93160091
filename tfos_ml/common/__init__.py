"""What every place stands on: the host's processes and directories, filesystems, and texts that people read."""
