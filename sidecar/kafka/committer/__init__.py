"""Write copies, events and progress in one transaction."""
