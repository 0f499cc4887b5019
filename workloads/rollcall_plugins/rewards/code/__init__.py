"""The reward `code`: tests of Python code in the response, run in a sandbox."""
