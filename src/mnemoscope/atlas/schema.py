"""The tables of an atlas: names, places, columns, and the origin that every file states.

One pyarrow schema per table of FORMAT.md. Readers ignore unknown columns; writers never drop one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from mnemoscope.atlas.columns import TableKind, parse_columns
from mnemoscope.errors import OptionError

SCHEMA_VERSION = 5

SENTENCES_PER_PART = 100_000


@dataclass(frozen=True)
class Provenance:
    model: str
    corpus: str
    plan: str


_EXPERT = "expert int16? | the expert; null in a dense layer"
_WEIGHED = f"""
    {_EXPERT}
    router_weight float32? form=number | of the expert at that prefix
"""
_SENTENCES = """
    sentence int64 | index in corpus order of the first occurrence among all distinct sentences; a validation text of
        its own is numbered on from there
    document int64 | likewise
    text string | as stored, not decoded from tokens
    tokens [int32] | without special tokens
    multiplicity int32 | how often it occurs; weighs nothing
    held_out bool | kept out of mining; all sentences of a validation text of its own
"""
_OF_PAIRS = """
    source string | in encoder-decoders: what the text is read with, as stored
    source_tokens [int32] | likewise, with what the tokenizer puts around them
"""
_OF_CROSS = """
    cross_input_top int32? | in encoder-decoders whose self- and cross-attention are told apart (columns of attention
        are then self-attention's alone): top token of the stream that cross-attention is added to; null in a block
        where they are not, as all columns of cross-attention are
    cross_attention_top int32? nulls_as=cross_input_top | top token of what cross-attention adds, alone
    cross_attention_norm float32? form=number | length of what it adds; in a post-norm block before its norm
    cross_attention_logit float32? form=number nulls_as=cross_attention_logit_mean | what it adds to the logit of
        `final_top`
    cross_attention_logit_mean float32? form=number nulls_as=cross_attention_logit_other | the same for the mean logit
    cross_attention_logit_other float32? form=number | the same for the logit of `other_top`
    cross_attention_logit_next,cross_attention_logit_other_next float32? form=number | the same for the logits of the
        text's next token and of `other_next_token`
"""
_KINDS = (
    TableKind("vocabulary", 65_536).with_columns("""
        token int32
        text string | as it appears in running text; bytes that are no text are shown as `\\xe2`
        bytes binary | what the token stands for; join the bytes of a prefix, then decode
    """),
    TableKind("tokens", 65_536).with_columns("""
        token int32
        count int64 form=count | in the distinct mined sentences
        next_count int64 form=count | as a next token
        first_count int64 form=count | as a first token
    """),
    TableKind("sentences", 1_024, "part", for_some=_OF_PAIRS).with_columns(_SENTENCES),
    TableKind("background", 65_536).with_columns("""
        sentence int64
        position int32
        token int32
        next_token int32? | null at the end of the sentence
    """),
    # A row group spans about 256 memories of 50 triggers, so one memory is read without its layer.
    TableKind(
        "triggers",
        12_800,
        "layer",
        for_experts=_WEIGHED,
        for_some="""
            own_coefficient float32? form=number | in models that read sentences whole: the coefficient where that
                position is masked; of the trigger that gives the target, else null
        """,
    ).with_columns("""
        memory int32
        sign int8 | +1: the highest coefficients (all > 0); -1: the lowest (all < 0)
        rank int16 form=rank | 0 is the strongest
        coefficient float32 form=number | the input of the down-projection
        sentence int64
        position int32 | the prefix is `tokens[0..position]` of that sentence
        token int32 | the prefix's last token
        next_token int32? | the token after it; null at the end of the sentence
        prefix_group int16 | the rank of the first trigger with the same prefix tokens
    """),
    TableKind(
        "activity",
        1_024,
        "layer",
        for_experts=f"""
        {_EXPERT}
        all_prefixes int64 form=count label='all {{places}}' | mined {{places}}, also those that its expert did not get
    """,
    ).with_columns("""
        memory int32
        prefixes int64 form=count label={places} | mined {places}; in a model of experts those that were
            routed to its expert
        positive int64 form=count | those with a coefficient > 0
        mean float64 form=number label='mean activation' | of the coefficient, over `prefixes`
        min float32 form=number label=lowest | coefficient, over `prefixes`
        max float32 form=number label=highest | likewise
        sampled int64 form=count label='{places} sampled' | {places} in the plan's sample of batches
        std float64 form=number label='standard deviation' | of the coefficient: population, over the sample; right to
            1e-6 of itself for coefficients of any float32 size, where the mean is at most 10,000 times as large
        histogram [int64] items=36 | 36 counts over the sample
    """),
    TableKind("values", 1_024, "layer", for_experts=_EXPERT).with_columns("""
        memory int32
        key_norm float32 form=number label='norm of the key' | length of the key; in gated layers of the
            gate row
        up_norm float32? form=number label='norm of the up row' | length of the up row; null where layers are not gated
        value_norm float32 form=number label='norm' | the value's length
        top_tokens [int32] of_head lengths_as=top_scores lengths_as=bottom_tokens | 20, best first; ties go to the
            lower id
        top_scores [float32] | their scores
        bottom_tokens [int32] of_head lengths_as=bottom_scores | the top of the negated value, most opposed first
        bottom_scores [float32] | their scores
        max_probability float32 form=share label='at coefficient 1' | the largest of the softmax of the value's
            scores (of the value itself, as in the paper)
        entropy float32 form=number unit=nats | of the same softmax
        target int32? of_head | the next token of the best trigger that has one
        target_rank int32? form=rank label="target's rank" | of the target under the value; 0: the value agrees
        trigger_log_probability float32? form=number label='log probability of {what_is_there}' | mean log probability
            of the {next_tokens} of the triggers under the value
        working_logit float32? form=number unit=nats nulls_as=working_probability
            label='top score at typical activation' | the value at its typical activation: times the median
            coefficient of the memory's positive triggers and the model's multipliers, over the layer's `value_scales`;
            its top score minus its mean score. Null without positive triggers, and everywhere without {cases}
        working_probability float32? form=share label='at typical activation' | the largest of the softmax of the
            value at its typical activation; null where `working_logit` is
        working_logit_negative float32? form=number unit=nats nulls_as=working_probability_negative
            label='top score at typical activation, below zero' | `working_logit` of the negative triggers, whose
            median is negative
        working_probability_negative float32? form=share label='at typical activation, below zero' |
            `working_probability` of the negative triggers; null where `working_logit_negative` is
        top_z float32? form=number label='top token stands out by' unit='standard deviations' | how far the
            first of the top scores is from the mean of the value's own scores; null where all are equal
        bottom_z float32? form=number label='bottom token stands out by' unit='standard deviations' | the same
            of the first of the bottom scores
        clear_z float32? form=number label='clear above' unit='standard deviations' | the same of
            1,000 seeded random directions under the same fold and head, 99th percentile: a feature *promotes* its
            first token only where that stands out by more
        literal_top int32? of_head | by the paper's formula, softmax(v E^T) without norm, gain or bias: the first token
        literal_max_probability float32? form=share label="largest, by the paper's formula" | its probability
        literal_target int32? of_head | the next token of the first trigger; null where that ends its sentence
        literal_target_rank int32? form=rank label="target's rank, by the paper's formula" | its rank
    """),
    TableKind(
        "neighbours",
        10_240,
        "layer",
        for_experts=f"""
        {_EXPERT}
        other_expert int16?
    """,
    ).with_columns("""
        memory int32
        rank int16 form=rank
        other_layer int16
        other_memory int32
        cosine float32 form=number | of the two values
    """),
    TableKind("removals", 65_536, for_experts=_EXPERT).with_columns("""
        layer int16
        memory int32
        sign int8 | +1
        trigger_rank int16 form=rank | the trigger's
        position int32 | the trigger is `tokens[0..position]`
        removed string | first, last, random, in models that read sentences whole also own (masked), in encoder-decoders
            also source_first, source_last, source_random
        removed_position int32 | which position that was; of a source which of its own tokens
        coefficient float32 form=number | the trigger's
        removed_coefficient float32 form=number | the one at the new place of that token, or of the one before it where
            that was dropped
    """),
    TableKind("prefixes", 65_536).with_columns("""
        prefix int32 | 0, 1, 2, ...
        sentence,document int64
        position int32 | the prefix is `tokens[0..position]`
        next_token int32
        final_top int32? | the top of the model's own logits; null without a head, as all tops and ranks by one
        literal_final_top int32? | the top of the final stream times the head's matrix, as in the paper's formula
    """),
    TableKind(
        "predictions",
        65_536,
        for_experts="""
        routed_memories int32? form=count | how many memories the prefix could fire
    """,
    ).with_columns("""
        prefix int32
        layer int16
        residual_top,ffn_top int32? | the top token of r, of u
        ffn_vote_top int32? | the top token of u under the values' projection
        output_top int32? | the top token of o
        residual_final_rank int32? form=rank | of `final` in r
        residual_final_probability float32? form=share | of `final` in r
        ffn_final_rank int32? form=rank | of `final` in u
        output_top_residual_rank int32? form=rank | of o's top token in r
        residual_top_ffn_rank int32? form=rank | of r's top token in u
        active int32 form=count | memories with a coefficient > 0
        effective float32 form=number | (sum c)^2 / sum c^2; 0 where nothing is active
        top_share float32 form=share | the largest c over the sum of c
        major int32 form=count | the size of the smallest set of memories with 90 % of the sum of c
        votes_ffn int32? form=count | memories with m_i != 0 whose vote, top(sign(m_i) v_i), is `ffn_vote_top`
        votes_ffn_major int32? form=count | those of them in the smallest set
        votes_output int32? form=count | memories with m_i != 0 whose vote is `output_top`
        literal_residual_top,literal_ffn_top,literal_output_top int32? | the top token of r, of the feed-forward
            layer's own output y and of o by the paper's formula: times the head's matrix, no norm, gain or bias
        literal_residual_final_probability float32? form=share | of `final` in softmax(r E^T)
        literal_residual_bare_probability float32? form=share | of `literal_final_top` in softmax(r E^T)
        literal_votes int32? form=count | memories, whatever their coefficient, whose `literal_top` is `literal_ffn_top`
    """),
    TableKind("patterns", 16_384, mined=False, for_experts=_EXPERT).with_columns("""
        layer int16
        memory int32
        pattern int16 | counted from 0 in each memory
        kind string | shallow or semantic
        description string
        triggers [int16] | the ranks of those that have it
        lift float32? form=number | how many times as frequent as in the text
        log10_p float32? form=number | logarithm of the probability of so many by chance
    """),
    TableKind("labels", 16_384, mined=False, for_experts=_EXPERT).with_columns("""
        layer int16
        memory int32
        sign int8 | 1 or -1
        label string | its best pattern, else the token that at least 5 of its 25 best prefixes end in, else `no clear
            pattern`; and what it promotes, if it does
        promotes bool? | null without a value at its typical activation
    """),
    TableKind("roles", 1_024, "layer", optional=True, for_experts=_EXPERT).with_columns("""
        memory int32
        key_top_tokens [int32] lengths_as=key_top_cosines | the 25 tokens that the key is closest to, best first
        key_top_cosines [float32] | their cosines
        trigger_token int32? | the last token of the best trigger
        trigger_rank int32? form=rank | its rank under the key
        trigger_cosine float32? form=number | its cosine
        triggers_found float32? form=share | of the last tokens of the 25 best triggers, the share among
            `key_top_tokens`
        control_token int32? | the last token of another memory's best trigger
        control_rank int32? form=rank | its rank under the key
        control_cosine float32? form=number | its cosine
        controls_found float32? form=share | the same of the last tokens of the other memory's 25 best triggers
        text_rank int32? form=rank | on a little text (sentences of `background`, about 4,096 tokens) the key
            points to one token most; that token's rank under the key
        shuffled_rank int32? form=rank | the same of the key with its entries in another order, one for each layer
        key_value,up_value,gate_value,gate_up float32? form=number | cosines of key, up row and value as directions of
            the stream (gains of norms on the way folded in), with a gate the last three, else the first; null where
            keys cannot be read. Only the signs of `up_value` and `gate_value` times `gate_up` are no convention
        removes_below,adds_above float32? form=number | a memory removes what it reads, or adds to it, where `up_value`
            (without gate `key_value`) is beyond these: the 0.25th and 99.75th percentile of 10,000 seeded pairs of a
            key and another memory's value of the layer, in experts of the expert
    """),
    TableKind("similar_words", 16_384, optional=True).with_columns("""
        word string | in lower case
        similar [int32] | rows of this table: the 40 nearest words with a cosine of at least 0.15, the nearest first
    """),
    TableKind("readings", 4_096, "layer", optional=True, for_experts=_EXPERT).with_columns("""
        memory int32
        lens string | rows are sorted by lens, then memory
        top_tokens [int32] | the 20 best, best first
        target_rank,control_rank int32? form=rank | null without a target
        max_probability float32 form=share | of the value's softmax
    """),
    TableKind("key_readings", 4_096, "layer", optional=True, for_experts=_EXPERT).with_columns("""
        memory int32
        lens string | rows are sorted by lens, then memory
        key_top_tokens [int32] | the 25 tokens that the key is closest to, best first
        trigger_rank int32? form=rank | rank of the best trigger's last token
        triggers_found float32? form=share | as in `roles`
        control_rank int32? form=rank | that of another memory's best trigger
        controls_found float32? form=share | the same of another memory's triggers
        text_rank,shuffled_rank int32? form=rank | as in `roles`, with the words of this lens
    """),
    TableKind("readouts", 65_536, optional=True).with_columns("""
        prefix int32
        layer int16
        lens string
        residual_top int32 | the residual's top token
        residual_final_rank int32 form=rank | in the residual's readout, of the final token
        residual_final_probability float32 form=share | likewise
        residual_loss float32 form=number unit=nats | -log p of `next_token` in the residual's readout
        residual_control_rank int32 form=rank | in the residual's readout, of another prefix's final token
        ffn_top,output_top int32 | the top tokens of the feed-forward update and of the layer's output
    """),
    TableKind("width", 65_536, optional=True).with_columns("""
        layer int16? | null where `kind` is `whole`
        kind string | `whole`: the model as it is; `least`, `random`: without so many of a layer's least useful or
            random memories; `exit`: tokens that stop at the layer; `duplicate`: how many memories have the same value
            and key as another
        memories int32? form=count | taken out; of `duplicate` those that are there twice
        draw int8? | which random order
        threshold float32? form=share | of `exit`: stopped where the residual's top token has more probability
        document int64? | its number
        tokens int64? form=count | its predicted tokens
        loss float64? form=number unit=nats | the sum of -log p of these tokens
        stopped int64? form=count | of `exit`: tokens that stop
        wrong int64? form=count | those of them where the model's final prediction is another
    """),
    TableKind("memorised", 1_024, optional=True).with_columns("""
        document int64 | its number in the text
        held_out bool | whether the hold-out rule keeps it from being mined
        agreed int32 form=count unit=tokens | of tokens 33 to 64, how many from the first on are the model's greedy
            continuation of the 32 before; 32: extractable
        loss float64 form=number unit=nats | -log p of these 32 tokens, mean
        text string | the first 64 tokens
        sentences [int64] lengths_as=inside | stored sentences that begin in it
        inside [int32] | how many of each one's first tokens lie in it
    """),
    TableKind("samples", 256, "layer", optional=True, for_experts=_EXPERT).with_columns("""
        memory int32
        coefficients [float16] items=0 | one for each prefix, divided by `scale`
        scale float32 form=number | the largest magnitude of them; 1 where all are zero
    """),
    TableKind("token_activations", 4_096, "layer", optional=True, for_experts=_EXPERT).with_columns("""
        memory int32
        sign int8
        rank int8 form=rank | the trigger's, the first of its `prefix_group`; triggers of ranks above 127 are left out
        coefficients [float16] | one for each token of the sentence, divided by `scale`
        scale float32 form=number | the largest magnitude of them; 1 where all are zero
    """),
    TableKind("random", 8_192, "layer", optional=True, for_experts=_WEIGHED).with_columns("""
        memory int32
        sign int8
        rank int16 form=rank | in order of the hash
        coefficient float32 form=number
        sentence int64
        position int32 | of the firing
        token int32 | as in `triggers`
        next_token int32? | as in `triggers`
        kept_firings int64 form=count | how many firings of this memory and sign were looked at, the same in all its
            rows
    """),
    TableKind("random_sentences", 1_024, optional=True, for_some=_OF_PAIRS).with_columns(_SENTENCES),
    TableKind("importance", 1_024, "layer", optional=True, for_experts=_EXPERT).with_columns("""
        memory int32
        prefixes int64 form=count label='{validation_cases}' | how many there were
        direct float32 form=number unit=logits label='direct effect' | mean of the size of its direct effect: what its
            coefficient times its value adds to F (the logit of the model's top token less its runner-up's), every norm
            behind it linear at its own scale
        attribution float32 form=number unit=logits | mean of the size of m dF/dm: what F (the logit of the model's
            top token less its runner-up's) would lose without it, to first order, later layers included
        direct_among_20 float32 form=share label='among the 20 largest direct effects' | the share of {cases} at which
            no 20 memories of the network, layers that were not mined included, have a larger one; an effect of 0 does
            not count
        attribution_among_20 float32 form=share label='among the 20 largest attributions' | the same of
            attributions
    """),
    TableKind("attention", 65_536, optional=True, for_some=_OF_CROSS).with_columns("""
        prefix int32
        layer int16
        other_top int32 | the final token of another prefix (the next one in a seeded circle)
        input_top int32 | top token of the stream that enters the block
        attention_top int32? | top token of what attention adds, alone
        ffn_alone_top int32? | parallel blocks: top token of the entering stream plus the feed-forward update; null in
            others, where it is `predictions.output_top`
        attention_norm float32? form=number | length of what attention adds; in a post-norm block before its norm
        ffn_norm float32 form=number | the same of the feed-forward layer
        attended float32? form=number unit=positions | effective number of attended positions, the beginning token
            included: exp of the entropy of the attention row, mean over heads
        attention_logit float32? form=number nulls_as=attention_logit_mean | what it adds to the logit of `final_top`
        ffn_logit float32 form=number | likewise
        attention_logit_mean float32? form=number nulls_as=attention_logit_other | the same for the mean logit of the
            vocabulary
        ffn_logit_mean float32 form=number | likewise
        attention_logit_other float32? form=number | the same for the logit of `other_top`
        ffn_logit_other float32 form=number | likewise
        embedding_logit,rest_logit,bias_logit float32 form=number | what has no layer, repeated in every row of a
            prefix: the stream that enters the first block; blocks and layers that are no row here, and what the
            function in a head's transform changes; biases of norms and head
        final_logit float32 form=number | the logit itself; the parts of all layers and the three above add up to it.
            Under an adaptive softmax: the score of the token's class plus its own, neither normalised
        embedding_logit_mean,rest_logit_mean,bias_logit_mean,final_logit_mean float32 form=number | the same for the
            mean logit of the vocabulary
        embedding_logit_other,rest_logit_other,bias_logit_other,final_logit_other float32 form=number | the same for
            the logit of `other_top`
        other_next_token int32? | the text's next token of the prefix that has `other_top`
        attention_logit_next,ffn_logit_next float32? form=number | what they add to the logit of the text's
            next token
        attention_logit_other_next,ffn_logit_other_next float32? form=number | the same for `other_next_token`
    """),
    TableKind("routing", 65_536).with_columns("""
        layer int16
        expert int16 | shared experts last
        tokens int64 form=count | prefixes that were routed to it
        weight_sum float64 form=number | the sum of the router's weights; of a shared expert that of its own gate, or 1
            each
        first_choice int64 form=count | prefixes at which it has the largest weight of the routed ones (of equal ones
            the lowest number)
    """),
)
LENS_TABLES = ("readings", "key_readings", "readouts")
"""Tables that `mnemoscope lens` makes; `mnemoscope extend` makes the other optional ones."""
MADE_WITH = {"random": ("random_sentences",)}
"""Further tables that come with one."""
TABLES: dict[str, TableKind] = {kind.name: kind for kind in _KINDS}

# The answers' tables, analyses/QUESTION.parquet: these columns, and the question's own after them.
_ANSWER = "layer int16?\nname string\nvalue float64?\ncount int64\nlow,high float64?"
ANSWER_COLUMNS = pa.schema([column.field for column in parse_columns(_ANSWER)])

THE_PAPERS = (
    "key_patterns",
    "key_removals",
    "value_agreement",
    "value_rank",
    "value_confidence",
    "layer_activity",
    "layer_composition",
    "refinement_match",
    "refinement_confidence",
    "refinement_events",
)
OF_VALUES = (
    *("values", "neighbours", "roles", "attention", "width", "memorised", "importance"),
    *("readings", "key_readings"),
)
"""Tables that an encoder alone does not have: they read values by a head."""
BEYOND = ("attention_share", "key_agreement", "lenses", "memorised", "width", "importance", "input_output")
"""Questions that the paper left open; each needs an optional table."""
QUESTIONS = (*THE_PAPERS, *BEYOND)
"""The questions, the paper's ten in its order: the one list. Answers of later versions are known by their manifests."""


def question_named(name: str) -> str:
    """The question of a name, or of a figure, such as `figure4`, `Fig. 4` or `B1`."""
    figures = {f"fig{number}": one for number, one in enumerate(THE_PAPERS, 2)}
    figures |= {f"b{number}": one for number, one in enumerate(BEYOND, 1)}
    short = re.sub("[ ._-]", "", name.lower()).replace("figure", "fig").replace("figb", "b")
    name = figures.get(short.partition(",")[0], name)
    if name not in QUESTIONS:
        raise OptionError(f"{name!r} is not a question; the questions are {', '.join(QUESTIONS)}")
    return name


def check_optional(tables: Sequence[str]) -> None:
    """Raises OptionError for a table that `mnemoscope extend` cannot make."""
    others = {*LENS_TABLES, *(name for names in MADE_WITH.values() for name in names)}
    added = [kind.name for kind in TABLES.values() if kind.optional and kind.name not in others]
    for name in tables:
        if name not in added:
            raise OptionError(f"{name!r} is not a table that can be added; these can: {', '.join(added)}")


def table_kind(name: str) -> TableKind:
    """The table of that name."""
    if name not in TABLES:
        raise OptionError(f"{name!r} is not a table of an atlas; the tables are {', '.join(sorted(TABLES))}")
    return TABLES[name]


def place(path: str) -> tuple[TableKind, int | None] | None:
    """The table and number of a path relative to the atlas; None where it is no table's."""
    match = re.fullmatch(r"([a-z_]+)(?:/([a-z]+)-([0-9]{3,}))?\.parquet", path)
    kind = TABLES.get(match[1]) if match else None
    if match is None or kind is None or kind.numbered != match[2]:
        return None
    number = None if kind.numbered is None else int(match[3])
    return (kind, number) if kind.path(number) == path else None


def metadata(name: str, provenance: Provenance) -> dict[bytes, bytes]:
    return {
        b"mnemoscope.schema": str(SCHEMA_VERSION).encode(),
        b"mnemoscope.table": name.encode(),
        b"mnemoscope.model": provenance.model.encode(),
        b"mnemoscope.corpus": provenance.corpus.encode(),
        b"mnemoscope.plan": provenance.plan.encode(),
    }


def schema_error(name: str, schema: pa.Schema, provenance: Provenance) -> str | None:
    """The fault in the schema of a table's file, in a few words; None without one."""
    stored = schema.metadata or {}
    for key, expected in metadata(name, provenance).items():
        if stored.get(key) != expected:
            seen = stored.get(key, b"nothing").decode("utf-8", "replace")
            return f"it says {key.decode()} = {seen}, the manifest {expected.decode()}"
    for column in TABLES[name].columns_beside(schema.names):
        index = schema.get_field_index(column.name)
        if index < 0:
            return f"column {column.name} is missing"
        if not schema.field(index).type.equals(column.type):
            return f"column {column.name} is {schema.field(index).type}, not {column.type}"
    return None
