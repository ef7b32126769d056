"""Lists of English words: stop words (paper, section 4.1), and closed classes such as prepositions and months.

A token is a stop word if its text, stripped and lower-cased, is in the list. Punctuation, digits and pieces of words
are not. A class is a possible pattern of a prefix's last word, and of the word before it.
"""

NAME = "nltk-english-179 + function words + contraction pieces"

# The content of NLTK's English list: 179 words, among them contractions as NLTK's tokenizer leaves them.
_NLTK = """
i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself yourselves he him his himself
she she's her hers herself it it's its itself they them their theirs themselves what which who whom this that that'll
these those am is are was were be been being have has had having do does did doing a an the and but if or because as
until while of at by for with about against between into through during before after above below to from up down in out
on off over under again further then once here there when where why how all any both each few more most other some such
no nor not only own same so than too very s t can will just don don't should should've now d ll m o re ve y ain aren
aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't haven haven't isn isn't ma mightn mightn't
mustn mustn't needn needn't shan shan't shouldn shouldn't wasn wasn't weren weren't won won't wouldn wouldn't
"""

# Pronouns, determiners, auxiliaries, prepositions, conjunctions and sentence adverbs that NLTK's list lacks.
_FUNCTION_WORDS = """
us one ones oneself whose whoever whatever whichever whomever someone somebody something anyone anybody anything
everyone everybody everything none nobody nothing another every either neither several many much less least enough half
else could would may might must shall ought cannot
across along alongside amid amidst among amongst around aside beneath beside besides beyond despite except inside
instead like near onto opposite outside past per regarding since throughout till toward towards underneath unlike unless
unto upon versus via within without
although though albeit whereas whether whereby wherein whereupon wherever whenever however hence thus therefore
thereby therein thereof moreover furthermore nevertheless nonetheless otherwise meanwhile accordingly consequently
also yet even ever never always often already still almost rather quite perhaps maybe indeed
away back forth apart together yes
"""

# The pieces that common tokenizers cut contractions into, apostrophe included.
_CONTRACTIONS = "'s 't 're 've 'll 'd 'm n't ’s ’t ’re ’ve ’ll ’d ’m n’t"  # noqa: RUF001

STOP_WORDS: frozenset[str] = frozenset(f"{_NLTK} {_FUNCTION_WORDS} {_CONTRACTIONS}".split())


def is_stop_word(text: str) -> bool:
    return text.strip().lower() in STOP_WORDS


CLASSES: dict[str, str] = {
    "a preposition": "of in to for with on at from by about as into like through after over between out against during"
    " without before under around among across along behind beyond near off toward towards upon within despite onto",
    "an article or determiner": "the a an this that these those each every some any no another such both either"
    " neither all",
    "a personal pronoun": "i you he she it we they me him her us them",
    "a possessive": "my your his its our their whose",
    "a form of be, have or do": "be is are was were been being am have has had having do does did doing done",
    "a modal verb": "can could may might must shall should will would cannot",
    "a conjunction": "and or but nor yet because although though while if unless since whereas",
    "a question word": "who whom what which when where why how",
    "a negation": "not no never none nothing nobody neither nor cannot",
    "a number word": "one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred"
    " thousand million billion",
    "an ordinal": "first second third fourth fifth sixth seventh eighth ninth tenth last next",
    "a month": "january february march april may june july august september october november december",
    "a day of the week": "monday tuesday wednesday thursday friday saturday sunday",
}

CLASS_OF: dict[str, tuple[str, ...]] = {
    word: tuple(name for name, words in CLASSES.items() if word in words.split())
    for words in CLASSES.values()
    for word in words.split()
}
