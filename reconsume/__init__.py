"""The import names of Reconsume for services and Spark jobs: `reconsume.once` and `reconsume.spark`.

Each module here gives names of a package whose own name is no good one to import (`spark` is the session in every
notebook), and has no code of its own. Nothing of Reconsume imports this package.
"""
