"""The shared domain of the driver: values, API objects, decisions, and the effects both services use."""
