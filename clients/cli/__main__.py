"""`python -m clients.cli`: the same as `assay`."""

from clients.cli.main import main

if __name__ == "__main__":
    main()
