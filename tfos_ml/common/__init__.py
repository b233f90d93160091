"""Shared by all folders: the host's processes and directories, filesystems, and texts for people."""
