"""What commands read: manifests in files, a world that is made of them, and a cluster."""
