"""The parts of the tests: `make test` runs the gate, `make test-full` every part."""
