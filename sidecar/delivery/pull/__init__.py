"""Pull mode: the service leases records and answers by handle."""
