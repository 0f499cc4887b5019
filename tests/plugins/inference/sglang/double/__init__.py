"""A stand-in for SGLang's server that refuses what SGLang's recorded contract does not have."""
