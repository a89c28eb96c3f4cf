"""A simulated node that starts as a real one was recorded: its state, its files, and NVML's answers."""
