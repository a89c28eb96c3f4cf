"""What a process of ours stands on: files that last, settings, logs, tasks, memory."""
