"""`python -m hogwild`: the same as the console script `hogwild` and as `python run.py`."""

from hogwild.cli import main

if __name__ == "__main__":
    main()
