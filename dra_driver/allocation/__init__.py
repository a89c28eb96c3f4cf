"""Which devices claims get: kube-scheduler's decision as pure functions.

    catalog = Catalog([PublishedSlice(ResourceSlice.of(obj)) for obj in slices])
    snapshot = Snapshot(catalog, classes, Usage.of(allocations))
    result = allocate([claim], NodeView("node-1"), snapshot)

`search.allocate` answers `Allocated`, with an allocation for each claim, or `NotAllocatable`, with a reason. The
snapshot has what is true of a cluster at one moment; the catalog of its slices can be used until one of them changes. A
`world.World` is made of objects as the API has them; `dra_driver.explain` says why something in it waits.
"""
