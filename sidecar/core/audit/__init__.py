"""The rules of a sound group, held against what its topics say. Pure: what is read comes in as values."""
