"""The wire contract: everything that Reconsume writes to Kafka or reads from it.

- names and settings: `names`, `levels`, `durations`, `specs` (topics), `acls` (rights)
- headers: `headers`, `headers_fast`; of other systems: `foreign_headers`, `foreign_letters`, `foreign_values`
- JSON records: `events`, `view_record`, `policy_record`; for all of them: `json_bounds`, `versions`

Pure, and imports nothing of ours. The sidecar, the Spark jobs and the tests therefore share one spelling of everything
on Kafka.
"""
