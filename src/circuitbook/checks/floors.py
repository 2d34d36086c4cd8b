"""How many laws of each exercise an answer without a thought obeys: these earn nothing.

Made by `python -m circuitbook.checks.trivial`; behind each number stands one such answer.
"""

FLOORS = {
    "01.centred_contribution": 4,  # of 6: return False
    "01.change_stream": 2,  # of 6: the first argument itself
    "01.mean_kl": 2,  # of 5: return False
    "01.which_numbers_move": 1,  # of 5: return set()
    "02.copying_score": 5,  # of 8: return True
    "02.fooling_head": 3,  # of 5: 2 identities
    "02.qk_score": 2,  # of 5: return False
    "02.source_writes": 1,  # of 5: the first argument itself
    "03.count_paths": 2,  # of 5: return False
    "03.one_big_matrix": 0,  # of 5
    "03.pattern_from_parts": 3,  # of 6: an identity
    "03.term_and_cut": 3,  # of 6: return (0, 0)
    "03.virtual_head": 3,  # of 6: zeros like the third tensor
    "04.best_triple": 0,  # of 5
    "04.bug_pair": 5,  # of 8: return None
    "04.counts_after": 4,  # of 8: return (1, 1)
    "04.triple_strength": 5,  # of 8: return False
    "05.blind_pair": 2,  # of 10: 4 identities
    "05.covariance_shares": 4,  # of 6: return (1, 0)
    "05.k_score": 3,  # of 5: return False
    "05.quiet_pair": 0,  # of 6
    "06.fooling_pattern": 3,  # of 6: a diagonal
    "06.honest_score": 3,  # of 10: return 0.5
    "06.key_cut": 1,  # of 5: an identity
    "06.matching_share": 3,  # of 7: return True
    "06.prefix_matching": 2,  # of 6: return False
    "07.mean_ablation": 4,  # of 6: zeros, rows of the first by columns of the last tensor
    "07.parameter_counts": 2,  # of 6: return (0, 0)
    "07.pre_activation_parts": 1,  # of 7: return (0, 0, 0)
    "07.windows_needed": 4,  # of 10: return True
    "08.feature_dimensionality": 5,  # of 12: return [0.5, 0.5]
    "08.leverages": 3,  # of 8: one for each column
    "08.toy_loss": 4,  # of 9: return False
    "08.two_codes": 16,  # of 24: two ones like the first tensor's columns
    "08.two_plans": 2,  # of 9: return (0, 0)
    "09.cheat": 3,  # of 6: the first 3 arguments
    "09.edges_into": 1,  # of 5: return False
    "09.honest_loss": 4,  # of 7: return True
    "09.loss_recovered": 4,  # of 8: return True
    "09.swap_first_title": 3,  # of 6: the first argument itself
    "10.euler_table": 4,  # of 14: None under each name
    "10.gate_and_content": 2,  # of 6: two zeros like the first tensor
    "10.jump": 3,  # of 8: return 0
    "10.realised_parts": 5,  # of 13: zeros like the first tensor
    "10.router_part": 4,  # of 7: zeros like the first tensor
    "11.counterexample": 4,  # of 10: return ''
    "11.path_effects": 1,  # of 7: return (0, 0, 0)
    "11.read_repair": 0,  # of 6
    "11.smallest_circuit": 7,  # of 18: the second argument as a list, and 90
    "11.two_drops": 3,  # of 7: return (0, 0)
}
