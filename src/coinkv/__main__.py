"""The command as a module, for `python -m`, `torchrun -m` and `accelerate launch -m`."""

from coinkv.cli.main import main

if __name__ == "__main__":
    main()
