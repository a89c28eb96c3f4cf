"""What the simulated API server refuses and fills in: by type, and by what webhooks and policies answer."""
