"""The base of each process: durable files, settings, logs, tasks, memory."""
