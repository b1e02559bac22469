"""Many groups seen from outside their pods: how they are found (`discovery.py`), and how they are now (`survey.py`)."""
