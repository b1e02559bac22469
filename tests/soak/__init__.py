"""The soak: three nodes, three sidecars and a service under a seeded schedule of faults, then checked. `make soak`."""
