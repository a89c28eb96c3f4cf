"""How a test within one process says that the plugin is killed."""


class Killed(BaseException):
    """The plugin is no more."""
