"""Fixtures that every test may ask for."""

from hypothesis import settings

# A slow machine is no failure of the product.
settings.register_profile("repository", deadline=None)
settings.load_profile("repository")

pytest_plugins = ["support.cluster", "support.processes"]
