"""Chapter 07: parameters counted, neurons read and ablated, in-context learning measured."""
