"""What tests share: deadlines that raise, brokers to start, topics to fill and to read. No test lives here."""
