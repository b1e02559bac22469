"""Benchmarks: ratios against a bare Python consume → produce copy loop, in one run on one machine. Never asserted."""
