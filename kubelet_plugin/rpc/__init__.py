"""The services that the kubelet calls: DRA, health stream and registration, on unix sockets.

gRPC reads its settings when it is imported, so this one is made here. With gRPC's event engine, the default, a message
of the kubelet passes three threads until one wakes the event loop. Without it, that one reads the socket itself: a
third fewer switches of threads in a call. A release of gRPC that does not know the name only logs that.
"""

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
