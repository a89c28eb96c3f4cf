"""The cluster: turns what nodes report into ResourceSlices."""
