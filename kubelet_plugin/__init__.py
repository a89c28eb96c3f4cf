"""The node: finds GPUs, reports them, and prepares ResourceClaims for kubelet."""
