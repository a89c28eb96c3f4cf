"""The services that the kubelet calls: DRA, health stream and registration, on unix sockets."""
