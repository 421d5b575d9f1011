"""python -m infra is the `clawrl` command."""

from infra.cli import main

main()
