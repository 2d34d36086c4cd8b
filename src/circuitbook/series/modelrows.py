"""A number read from a trained model says which model; ours is another one and is not judged.

Rows about models: the series' own on the published weights, public measurements on the same
weights, the literature on gpt2, and the 2021 paper.
"""

from circuitbook.series import heads
from circuitbook.series.rows import SAME, Row, Subject

__all__ = ["SUBJECTS"]

_ERROR = (
    "Read as a 95 % interval, plus_minus would mean half the spread between windows. Ours is one "
    "standard error, clustered by document. Two of them are wide, for some models wider than the "
    "score itself, so the verdict is a weak test: look at the losses too."
)
_ORDER = "Heads in the order of their numbers. A number means nothing in another model."
_NO_NEURON = "a neuron belongs to its model; chapter 07 reads neurons of the course's gelu-1l"
_NO_SIZE = "no course model of this size"
_OTHER_TASK = "chapter 11 has miniature tasks: others"


def _aunt(model: str) -> tuple[Row, ...]:
    words = {
        "p_sally": "probability of ␣Sally",
        "top5": "five likeliest tokens",
        "head": "last layer, the head that looks most at the name",
    }
    start = f"part7.aunt_sally.{model}"
    return tuple(
        Row(f"{start}.{p}", f"{model}: {w}", "09", reads="tokens") for p, w in words.items()
    )


_ICL = Subject(
    "In-context learning",
    "How much easier a text gets while it is read: the loss at token 500 minus the loss at token "
    "50, in nats. Below zero is better. The broad score takes the mean over twenty tokens at "
    "either place.",
    (
        Row("part7.icl_by_hand", "three windows by hand", "07", "same"),
        Row("part7.icl.attn-only-1l", "attn-only-1l", "07", remark=_ERROR),
        Row("part7.icl.attn-only-2l", "attn-only-2l", "07", remark=_ERROR),
        Row("part7.icl.gelu-1l", "gelu-1l", "07", remark=_ERROR),
        Row("part7.icl.gelu-2l", "gelu-2l", "07", remark=_ERROR),
        Row("part7.icl.gpt2", "gpt2", "07", none=_NO_SIZE, remark=_ERROR),
    ),
)

_NEURONS = Subject(
    "Two neurons of gelu-1l",
    "The share of tokens where a neuron fires, its largest activation, the tokens whose logits it "
    "raises, and the tokens that excite it directly.",
    (
        *(
            Row(
                f"part7.neuron.{n}",
                f"neuron {n}",
                "07",
                none=_NO_NEURON,
                shown=("fires_above_0.1", "max"),
                remark="How often it fires and how far depends on the windows, and the series does "
                "not say which it drew: shown, not judged.",
            )
            for n in (847, 1996)
        ),
    ),
)

_AUNT = Subject(
    "Aunt Sally",
    "“I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt”: on this prompt an "
    "attribution graph says what was copied, and not why.",
    (
        Row(
            "part7.aunt_sally.tokens",
            "tokens of the prompt",
            "09",
            remark="The course models have a tokenizer of their own.",
            reads="tokens",
        ),
        *_aunt("attn-only-1l"),
        *_aunt("attn-only-2l"),
    ),
)

_ONE_LAYER = Subject(
    "Heads of the one-layer model",
    "Public measurements on the series' own weights, and the same measures on the course's "
    "one-layer model.",
    (
        Row(
            "heads.attn-only-1l.ov_eigen_score",
            "copying score",
            "02",
            take=heads.copying_scores,
            remark=_ORDER,
            reads="nothing",
        ),
        Row(
            "heads.attn-only-1l.self_top1",
            "share of tokens on top of their own OV row",
            "02",
            take=heads.own_on_top,
            remark="Course models: every token of the vocabulary. Published models: the tokens "
            "that the public source drew.",
            reads="nothing",
        ),
        Row(
            "heads.attn-only-1l.prev_token",
            "attention to the previous token",
            "02",
            take=heads.previous_one_layer,
            remark=_ORDER,
            reads="tokens",
        ),
        Row(
            "heads.attn-only-1l.bigrams",
            "direct path: likeliest next token",
            "01",
            none="chapter 01 judges the direct path as a whole table of pairs",
            reads="tokens",
        ),
    ),
)

_TWO_LAYERS = Subject(
    "Heads of the two-layer model",
    "The circuit of the course: a previous-token head in the first layer, an induction head in the "
    "second. Public measurements on the series' weights, and ours.",
    (
        Row(
            "heads.attn-only-2l.prev_token_L0",
            "first layer: attention to the previous token",
            "06",
            take=heads.previous_first_layer,
            remark=_ORDER,
            reads="tokens",
        ),
        Row(
            "heads.attn-only-2l.induction_L1",
            "second layer: prefix matching",
            "06",
            take=heads.prefix_matching,
            remark="Course models: the course's protocol, with jittered gaps. Published models: "
            "the public source's, one repeat without a gap.",
            reads="tokens",
        ),
        Row(  # read from weights, but of the head that repeats of the text's own words point at
            "heads.attn-only-2l.ov_1.6",
            "the induction head as a copier",
            "02",
            take=heads.reader_copies,
        ),
        Row(
            "heads.attn-only-2l.repeat_top1",
            "repeats: right token on top",
            "06",
            none="chapter 06 reports the median rank and the paired loss at repeats",
            reads="tokens",
        ),
        Row(
            "heads.attn-only-2l.virtual_qk_diag",
            "words that find themselves through a first-layer head",
            "06",
            take=heads.virtual_diagonal,
            remark="The share depends on how many words there are: both columns have as many, the "
            "published models those that the source drew. Compare the "
            "largest: a head's number means nothing in another model.",
            reads="tokens",
        ),
        Row(
            "heads.attn-only-2l.k_composition",
            "K-composition of all pairs",
            "05",
            take=heads.k_composition,
            remark="For random pairs of width 256, as ours, the baseline is 1/√256 = 0.0625.",
            reads="nothing",
        ),
        Row(
            "heads.attn-only-2l.q_composition",
            "Q-composition of all pairs",
            "05",
            take=heads.q_composition,
            reads="nothing",
        ),
        Row(
            "heads.attn-only-2l.phase",
            "while training: tokens seen, prefix matching",
            "06",
            "elsewhere",
            take=heads.phase,
            hub="snapshots of the training: not fetched by this course",
            remark="Ours is the head that is best in the end, at twelve of its snapshots.",
        ),
    ),
)

_GPT2 = Subject(
    "gpt2 and known circuits",
    "Results of the literature on gpt2. Chapter 11 runs the same tools on gpt2 where its weights "
    "are; on the course's two miniature tasks the numbers are those of another model and another "
    "task, and stand in the chapter.",
    (
        Row(
            "heads.gpt2.induction",
            "induction heads: prefix matching",
            "11",
            none=_NO_SIZE,
            reads="tokens",
        ),
        Row("heads.gpt2.prev_token", "previous-token heads", "11", none=_NO_SIZE, reads="tokens"),
        Row(
            "gallery.ioi",
            "indirect object identification",
            "11",
            none=_OTHER_TASK,
            remark="On published weights: our templates, on which all three numbers hang; a head "
            "is kept at all places, not only at its own, so the gap is not theirs. The lists of "
            "heads are theirs. Shown, not judged.",
            shown=("heads", "logit_diff", "io_preferred", "faithfulness_gap"),
            reads="tokens",
        ),
        Row(
            "gallery.ioi.self_repair",
            "self-repair (logit difference)",
            "11",
            none=_OTHER_TASK,
            remark="On published weights: our templates, and a logit difference hangs on them. "
            "Shown, not judged.",
            shown=(
                "clean",
                "three_name_movers_mean_ablated",
                "direct_attribution_predicted_drop",
            ),
            reads="tokens",
        ),
        Row(
            "gallery.greater_than",
            "greater-than",
            "11",
            none=_OTHER_TASK,
            shown=("heads", "mlps", "prob_diff", "circuit_prob_diff"),
            remark="On published weights: our templates; whole nodes are cut, not edges, so the "
            "circuit's number is near theirs in kind only. The lists are theirs. Shown, not "
            "judged.",
            reads="tokens",
        ),
    ),
)

_PAPER = Subject(
    "The 2021 paper",
    "Numbers of the paper's own models, which are not public. For orientation only.",
    (
        Row(
            "paper.term_importance_nats",
            "fall of the loss by kind of term, in nats",
            "03",
            "elsewhere",
            take=heads.term_importance,
            hub="not public",
            remark="Ours with all patterns frozen. The direct path is against a uniform guess, the "
            "rest against the run before it; where the paper's direct path starts is not stated.",
        ),
        Row(
            "paper.copying_heads",
            "copying heads",
            "02",
            "elsewhere",
            take=heads.count_copying,
            hub="not public",
            remark="Ours have a copying score of 0.9 or more. Chapter 02 shows why that alone is "
            "not enough.",
        ),
    ),
)

_COUNTS, _GELU, _ERRATUM, _TOYS, _SAE = SAME
SUBJECTS: tuple[Subject, ...] = (
    _COUNTS, _GELU, _ERRATUM, _ICL, _NEURONS, _TOYS, _SAE, _AUNT, _ONE_LAYER, _TWO_LAYERS, _GPT2,
    _PAPER,
)  # fmt: skip
