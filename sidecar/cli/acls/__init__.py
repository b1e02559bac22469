"""`acls`: who needs which right, planned (`plan`), applied and written for other programs (`commands`, `export`)."""
