"""Answers to the exercises of chapter 11: right ones, and wrong ones that a tired person writes."""

from itertools import chain, combinations

import numpy as np
import torch

# ---- 11.two_drops -------------------------------------------------------------------------------


def drops_by_lists(writes, answer):
    n = len(writes)
    clean = [answer(i, writes[i]) for i in range(n)]
    mean = [answer(i, writes.mean(0)) for i in range(n)]
    other = [np.mean([answer(i, writes[j]) for j in range(n) if j != i]) for i in range(n)]
    return np.mean(clean) - np.mean(mean), np.mean(clean) - np.mean(other)


def drops_by_table(writes, answer):
    n = len(writes)
    table = torch.tensor([[answer(i, w) for w in writes] for i in range(n)], dtype=torch.float64)
    own = table.diagonal().mean()
    mean = np.mean([answer(i, writes.sum(0) / n) for i in range(n)])
    return own - mean, own - (table.sum() - table.trace()) / (n * (n - 1))


def drops_by_shifts(writes, answer):
    n = len(writes)
    clean = sum(answer(i, writes[i]) for i in range(n)) / n
    middle = writes.mean(0)
    mean = sum(answer(i, middle) for i in range(n)) / n
    shifted = [answer(i, writes[(i + s) % n]) for s in range(1, n) for i in range(n)]
    return [clean - mean, clean - sum(shifted) / len(shifted)]


def drops_with_own(writes, answer):
    n = len(writes)
    table = torch.tensor([[answer(i, w) for w in writes] for i in range(n)])
    own = table.diagonal().mean()
    mean = torch.tensor([answer(i, writes.mean(0)) for i in range(n)]).mean()
    return own - mean, own - table.mean()


def drops_mean_of_answers(writes, answer):
    table = torch.tensor([[answer(i, w) for w in writes] for i in range(len(writes))])
    n, own = len(writes), table.diagonal().mean()
    return own - table.mean(), own - (table.sum() - table.trace()) / (n * (n - 1))


def drops_to_zero(writes, answer):
    mean, other = drops_by_lists(writes, answer)
    n = len(writes)
    own = np.mean([answer(i, writes[i]) for i in range(n)])
    return own - np.mean([answer(i, 0 * writes[i]) for i in range(n)]), other


def drops_swapped(writes, answer):
    return drops_by_lists(writes, answer)[::-1]


def drops_negative(writes, answer):
    return [-x for x in drops_by_lists(writes, answer)]


def drops_one_neighbour(writes, answer):
    n, mean = len(writes), drops_by_lists(writes, answer)[0]
    own = np.mean([answer(i, writes[i]) for i in range(n)])
    return mean, own - np.mean([answer(i, writes[i - 1]) for i in range(n)])


def drops_without_prompt(writes, answer):
    n = len(writes)
    mean = [answer(0, writes.mean(0)) for _ in range(n)]
    own = np.mean([answer(i, writes[i]) for i in range(n)])
    return own - np.mean(mean), drops_by_lists(writes, answer)[1]


# ---- 11.path_effects ----------------------------------------------------------------------------


def paths_by_names(first, second, answer, x, other):
    a, new = first(x), first(other)
    b, heard = second(x, a), second(x, new)
    clean = answer(x, a, b)
    return clean - answer(x, new, heard), clean - answer(x, a, heard), clean - answer(x, new, b)


def paths_by_loop(first, second, answer, x, other):
    own, twin = first(x), first(other)

    def run(to_second, to_answer):
        return answer(x, to_answer, second(x, to_second))

    return [run(own, own) - run(*way) for way in ((twin, twin), (twin, own), (own, twin))]


def paths_in_numpy(first, second, answer, x, other):
    words = (first(x), first(other))
    table = np.array([[answer(x, a, second(x, s)) for a in words] for s in words])
    return table[0, 0] - table[1, 1], table[0, 0] - table[1, 0], table[0, 0] - table[0, 1]


def paths_patch_the_prompt(first, second, answer, x, other):
    a, new = first(x), first(other)
    clean = answer(x, a, second(x, a))
    return (
        clean - answer(other, new, second(other, new)),
        clean - answer(x, a, second(other, new)),
        clean - answer(x, new, second(x, a)),
    )


def paths_straight_hears_all(first, second, answer, x, other):
    whole, through, _ = paths_by_names(first, second, answer, x, other)
    return whole, through, whole


def paths_as_remainder(first, second, answer, x, other):
    whole, through, _ = paths_by_names(first, second, answer, x, other)
    return whole, through, whole - through


def paths_not_falls(first, second, answer, x, other):
    return [-v for v in paths_by_names(first, second, answer, x, other)]


def paths_swapped(first, second, answer, x, other):
    whole, through, straight = paths_by_names(first, second, answer, x, other)
    return whole, straight, through


def paths_to_zero(first, second, answer, x, other):
    return paths_by_names(lambda v: first(v) if v == x else 0.0, second, answer, x, other)


def paths_answer_sees_other(first, second, answer, x, other):
    a, new = first(x), first(other)
    clean = answer(x, a, second(x, a))
    return (
        clean - answer(other, new, second(x, new)),
        clean - answer(other, a, second(x, new)),
        clean - answer(other, new, second(x, a)),
    )


# ---- 11.smallest_circuit ------------------------------------------------------------------------


def _best(F, nodes, share):
    for n in range(len(nodes) + 1):
        best = max(combinations(nodes, n), key=F)
        if F(best) >= share * F(nodes):
            return best
    return tuple(nodes)


def _beaten(F, nodes, circuit, generator, draws=100):
    count = 0
    for _ in range(draws):
        order = torch.randperm(len(nodes), generator=generator)[: len(circuit)]
        count += F([nodes[i] for i in order]) < F(circuit)
    return count


def smallest_all_sizes(F, nodes, share, generator):
    circuit = _best(F, nodes, share)
    return circuit, _beaten(F, nodes, circuit, generator)


def smallest_by_sorting(F, nodes, share, generator):
    sets = chain.from_iterable(combinations(nodes, n) for n in range(len(nodes) + 1))
    good = [K for K in sets if F(K) >= share * F(nodes)]
    circuit = min(good, key=lambda K: (len(K), -F(K)))
    return list(circuit), _beaten(F, nodes, circuit, generator)


def smallest_without_itself(F, nodes, share, generator):
    circuit = _best(F, nodes, share)
    others = [K for K in combinations(nodes, len(circuit)) if set(K) != set(circuit)]
    picks = torch.randint(len(others), (100,), generator=generator).tolist()
    return circuit, sum(F(others[i]) < F(circuit) for i in picks)


def smallest_greedy(F, nodes, share, generator):
    circuit = []
    while F(circuit) < share * F(nodes):
        circuit.append(max((v for v in nodes if v not in circuit), key=lambda v: F([*circuit, v])))
    return circuit, _beaten(F, nodes, circuit, generator)


def smallest_by_removal(F, nodes, share, generator):
    circuit = list(nodes)
    for v in nodes:
        rest = [w for w in circuit if w != v]
        if F(rest) >= share * F(nodes):
            circuit = rest
    return circuit, _beaten(F, nodes, circuit, generator)


def smallest_by_single_effects(F, nodes, share, generator):
    order = sorted(nodes, key=lambda v: -F([v]))
    n = next(n for n in range(len(nodes) + 1) if F(order[:n]) >= share * F(nodes))
    return order[:n], _beaten(F, nodes, order[:n], generator)


def smallest_first_found(F, nodes, share, generator):
    sets = chain.from_iterable(combinations(nodes, n) for n in range(len(nodes) + 1))
    circuit = next(K for K in sets if F(K) >= share * F(nodes))
    return circuit, _beaten(F, nodes, circuit, generator)


def smallest_ties_beaten(F, nodes, share, generator):
    circuit = _best(F, nodes, share)
    sets = [torch.randperm(len(nodes), generator=generator)[: len(circuit)] for _ in range(100)]
    return circuit, sum(F([nodes[i] for i in K]) <= F(circuit) for K in sets)


def smallest_other_size(F, nodes, share, generator):
    circuit = _best(F, nodes, share)
    return circuit, _beaten(F, nodes, list(circuit)[:-1], generator, 100)


def smallest_everything(F, nodes, share, generator):
    return nodes, 100


# ---- 11.counterexample --------------------------------------------------------------------------


def _parts(C):
    return chain.from_iterable(combinations(C, n) for n in range(len(C) + 1))


def counter_by_max(F, circuit, nodes):
    def gap(K):
        return abs(F([v for v in circuit if v not in K]) - F([v for v in nodes if v not in K]))

    return max(_parts(circuit), key=gap)


def counter_by_bits(F, circuit, nodes):
    best, most = [], -1.0
    for bits in range(2 ** len(circuit)):
        K = {v for i, v in enumerate(circuit) if bits >> i & 1}
        gap = abs(F(set(circuit) - K) - F(set(nodes) - K))
        if gap > most:
            best, most = K, gap
    return best


def counter_largest_first(F, circuit, nodes):
    rows = [(abs(F(set(circuit) - set(K)) - F(set(nodes) - set(K))), K) for K in _parts(circuit)]
    return list(max(rows, key=lambda row: row[0])[1])


def counter_single_nodes(F, circuit, nodes):
    return max(
        ([v] for v in circuit),
        key=lambda K: abs(F(set(circuit) - set(K)) - F(set(nodes) - set(K))),
    )


def counter_everything(F, circuit, nodes):
    return circuit


def counter_nothing(F, circuit, nodes):
    return []


def counter_signed(F, circuit, nodes):
    return max(_parts(circuit), key=lambda K: F(set(circuit) - set(K)) - F(set(nodes) - set(K)))


def counter_most_damage(F, circuit, nodes):
    return min(_parts(circuit), key=lambda K: F(set(circuit) - set(K)))


def counter_from_all_nodes(F, circuit, nodes):
    return max(_parts(nodes), key=lambda K: abs(F(set(circuit) - set(K)) - F(set(nodes) - set(K))))[
        ::-1
    ] + tuple(v for v in nodes if v not in circuit)


# ---- 11.read_repair -----------------------------------------------------------------------------


def repair_by_sums(before, after, cut):
    change = {k: (after[k] - before[k]).mean().item() for k in before}
    predicted = -sum(change[k] for k in cut)
    others = {k: v for k, v in change.items() if k not in cut}
    return predicted, -sum(change.values()), max(others, key=others.get)


def repair_by_stack(before, after, cut):
    names = list(before)
    change = torch.stack([after[k] - before[k] for k in names]).mean(1)
    mine = torch.tensor([k in cut for k in names])
    helper = names[int(change.masked_fill(mine, -torch.inf).argmax())]
    return -change[mine].sum(), -change.sum(), helper


def repair_in_numpy(before, after, cut):
    def total(terms, keep):
        return np.mean(np.sum([terms[k].numpy() for k in terms if keep(k)], axis=0))

    def inside(k):
        return k in cut

    gains = sorted((float((after[k] - before[k]).mean()), k) for k in before if k not in cut)
    whole = total(before, lambda k: True) - total(after, lambda k: True)
    return total(before, inside) - total(after, inside), whole, gains[-1][1]


def repair_before_only(before, after, cut):
    _, actual, helper = repair_by_sums(before, after, cut)
    return sum(before[k].mean().item() for k in cut), actual, helper


def repair_actual_is_gain(before, after, cut):
    predicted, actual, helper = repair_by_sums(before, after, cut)
    return predicted, predicted - actual, helper


def repair_helper_may_be_cut(before, after, cut):
    predicted, actual, _ = repair_by_sums(before, after, cut)
    return predicted, actual, max(before, key=lambda k: (after[k] - before[k]).mean())


def repair_largest_after(before, after, cut):
    predicted, actual, _ = repair_by_sums(before, after, cut)
    return predicted, actual, max((k for k in before if k not in cut), key=lambda k: before[k][0])


def repair_best_gain_only(before, after, cut):
    predicted, _, helper = repair_by_sums(before, after, cut)
    return predicted, predicted - (after[helper] - before[helper]).mean().item(), helper


def repair_signs(before, after, cut):
    predicted, actual, helper = repair_by_sums(before, after, cut)
    return -predicted, -actual, helper


RIGHT = {
    "11.two_drops": [drops_by_lists, drops_by_table, drops_by_shifts],
    "11.path_effects": [paths_by_names, paths_by_loop, paths_in_numpy],
    "11.smallest_circuit": [smallest_all_sizes, smallest_by_sorting, smallest_without_itself],
    "11.counterexample": [counter_by_max, counter_by_bits, counter_largest_first],
    "11.read_repair": [repair_by_sums, repair_by_stack, repair_in_numpy],
}
WRONG = {
    "11.two_drops": [
        drops_with_own, drops_mean_of_answers, drops_to_zero, drops_swapped, drops_negative,
        drops_one_neighbour, drops_without_prompt,
    ],
    "11.path_effects": [
        paths_patch_the_prompt, paths_straight_hears_all, paths_as_remainder, paths_not_falls,
        paths_swapped, paths_to_zero, paths_answer_sees_other,
    ],
    "11.smallest_circuit": [
        smallest_greedy, smallest_by_removal, smallest_by_single_effects, smallest_first_found,
        smallest_ties_beaten, smallest_other_size, smallest_everything,
    ],
    "11.counterexample": [
        counter_single_nodes, counter_everything, counter_nothing, counter_signed,
        counter_most_damage, counter_from_all_nodes,
    ],
    "11.read_repair": [
        repair_before_only, repair_actual_is_gain, repair_helper_may_be_cut, repair_largest_after,
        repair_best_gain_only, repair_signs,
    ],
}  # fmt: skip
