"""`dractl migrate`: its command, what it reads of files and clusters, and its report."""
