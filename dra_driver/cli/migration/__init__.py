"""`dractl migrate`: its command with its report, and what it reads of files and clusters."""
