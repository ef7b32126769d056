"""Small closed classes of English words whose members share a role, not a form: prepositions, months and the like.

Data only. A class is tried as a pattern of the last word and of the word before it; words of other languages belong to
none. Content words are not listed here.
"""

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
"""The classes of every listed word, by its lower-case form."""
