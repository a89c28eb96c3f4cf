"""Whether the devices that the result gets are those that the old request meant."""
