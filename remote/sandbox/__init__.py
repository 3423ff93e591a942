"""The embedded host: an SSH server and a real CPU ``ml-env`` on this machine."""
