"""`python -m sidecar`: the same as `reconsume`."""

from sidecar.cli import main

if __name__ == "__main__":
    main()
