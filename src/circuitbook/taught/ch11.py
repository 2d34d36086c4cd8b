"""Circuit gallery: known circuits, and tools that were tested first: what chapter 11 teaches, for later chapters to use.

Generated from scripts/11_circuit_gallery.py; do not edit.
"""



def share_recovered(F, circuit, nodes):
    """(F(C) - F(nothing)) / (F(M) - F(nothing)): 1 when the circuit alone does all of it.

    F: list of nodes -> number.  nodes: all of them.
    """
    return (F(circuit) - F([])) / (F(nodes) - F([]))


def completeness_gap(F, circuit, nodes, removed):
    """|F(C - K) - F(M - K)| for one K: how differently circuit and model break."""
    left, rest = ([v for v in group if v not in removed] for group in (circuit, nodes))
    return abs(F(left) - F(rest))


def node_worth(F, circuit, node, removed):
    """|F(C - K - v) - F(C - K)| for one K: what the node adds when K is gone."""
    left = [v for v in circuit if v not in removed]
    return abs(F([v for v in left if v != node]) - F(left))
