"""Reconsume: a Kafka retry sidecar, its commands, and its helpers for services and Spark jobs.

- `reconsume.sidecar`: the sidecar and the command line. No public names: run `reconsume`.
- `reconsume.topics`: the formats on Kafka. No public names.
- `reconsume.spark`: for Spark jobs: consumers of a group, the view as a DataFrame or a table, and the view's job.
- `reconsume.once`: for a service's own code: let the effect of a record happen once.

In the repository these four are folders at the top, and the entries here are symbolic links to them. In an installed
package they are ordinary folders.
"""
