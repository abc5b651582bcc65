"""The commands of the `citrus` program, one file each with a `run(arguments)`."""
