"""What kubelet speaks to: the DRA services, the health stream and the registration service, on unix sockets."""
