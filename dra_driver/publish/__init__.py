"""The reconciler that makes the cluster's ResourceSlices match inventories and policy.

`pools.PoolPublisher` runs in the controller, for all nodes, and in a node plugin with `--publisher node`, for its own:

    publisher = PoolPublisher(Watches(kube), Publication(driver=name, policies=source))      # or with node_name
    await publisher.run()                                                                    # until cancelled

Both read NodeInventory objects, so both follow the same rule for wiped slices (`inventories.Life`). `observed` is the
watch of slices plus the publisher's own latest writes, `inventories` the stored parts of inventories, `live` follows
the GpuPolicies, `decisions` says what of them holds for a node and when, `pools` is the reconciler, `narrator` logs and
counts what it does.

Nothing is imported here: commands that only read policies start without the API client.
"""
