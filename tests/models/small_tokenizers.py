"""Tokenizers of a few words, of the kinds that language models have. Not a test itself."""

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import models as pieces

BYTES = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}


def byte_level() -> Tokenizer:
    """As GPT-2's: 263 or so tokens, of which `<|endoftext|>` is the first."""
    plain = Tokenizer(pieces.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=265,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain.train_from_iterator(["the cat sat on the mat"] * 3, trainer)
    return plain


def byte_fallback() -> Tokenizer:
    """A SentencePiece BPE as Llama's: `▁` for a space, `<0xE2>` for a byte without a piece, `<s>` special."""
    words = ["▁", "a", "b", "▁a", "<", "s", ">", "/"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **BYTES, **{word: 259 + place for place, word in enumerate(words)}}
    plain = Tokenizer(pieces.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    plain.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    plain.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    plain.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    plain.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return plain


def unigram() -> Tokenizer:
    plain = Tokenizer(
        pieces.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("c", -2.0), ("at", -2.0)], 0, False)
    )
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    plain.decoder = decoders.Metaspace()
    return plain


def wordpiece() -> Tokenizer:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "play": 2, "##ing": 3, "the": 4, ".": 5}
    plain = Tokenizer(pieces.WordPiece(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.decoder = decoders.WordPiece()
    plain.add_special_tokens(["[UNK]", "[CLS]"])
    return plain
