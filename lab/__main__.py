"""``python -m lab``."""

from lab.cli import program

if __name__ == "__main__":
    program()
