"""For Spark jobs: consumers of a group, the view as a DataFrame or a table, and the view's own job.

`python -m reconsume.spark run …` is the job. It needs PySpark, and so do all modules here.
"""
