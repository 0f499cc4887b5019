"""The custom resources as typed models, their names, and the generation of their CRDs."""
