"""`python run.py --procs 4` trains; `python run.py --help` says what else there is. The same as `python -m hogwild`."""

from hogwild.__main__ import main

if __name__ == "__main__":
    main()
