"""`python -m reconsume.spark run …` and `… sql …`."""

from reconsume.spark.job import main

if __name__ == "__main__":
    main()
