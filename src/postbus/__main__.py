"""Where the `postbus` script starts."""

from postbus.cli.quick_imports import imported_quickly


def main() -> None:
    """Entry point of the `postbus` script."""
    with imported_quickly():
        from postbus.cli.main import app
    app()


if __name__ == "__main__":
    main()
