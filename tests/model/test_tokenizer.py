import json

import pytest

from servelab.model import ByteTokenizer, PretrainedTokenizer

TEXTS = ["", "Hello world", "  two  spaces\n\ttab", "🦙é naïve 中文", "def f(x):\n    return x**2", "1234 and 5.6"]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(smollm2, text):
    for tokenizer in (smollm2.tokenizer, ByteTokenizer()):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_digit_is_a_token(smollm2):
    """SmolLM splits numbers into digits; a converter that forgets it joins them."""
    assert [smollm2.tokenizer.token_text(token) for token in smollm2.tokenizer.encode("2024")] == list("2024")


def test_token_texts_keep_their_spaces_and_join_to_the_text(smollm2):
    tokenizer = smollm2.tokenizer
    pieces = [tokenizer.token_text(token) for token in tokenizer.encode("The capital of France")]
    assert pieces == ["The", " capital", " of", " France"]
    assert tokenizer.token_text(tokenizer.encode("🦙")[0]) == "\ufffd"
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_token_bytes_join_to_the_text_where_characters_are_split(smollm2):
    tokenizer, text = smollm2.tokenizer, "é 🦙\n∑ naïve"
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)) == text.encode()
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert [ByteTokenizer().token_bytes(token) for token in (0xE2, 256)] == [b"\xe2", b"<end>"]


def test_special_tokens_are_known_in_text_and_left_out_of_it(smollm2):
    tokenizer = smollm2.tokenizer
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]
    assert tokenizer.decode([1, *tokenizer.encode("user"), 2]) == "user"
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == smollm2.config.vocab_size


def test_an_unknown_id_is_refused(smollm2):
    with pytest.raises(ValueError, match=r"a token id in 0\.\.49151, got 49152"):
        smollm2.tokenizer.token_text(49_152)


def test_chat_ends_where_the_answer_begins(smollm2):
    prompt = smollm2.tokenizer.chat(USER)
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert ByteTokenizer().chat(USER) == "user: hi\nassistant: "


def configure(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return PretrainedTokenizer(folder, [7])


def test_the_template_may_lie_in_three_places(llama_copy):
    assert configure(llama_copy, chat_template=TEMPLATE).chat(USER) == "[user]hi>"
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    assert configure(llama_copy, chat_template=named).chat(USER) == "[user]hi>"
    (llama_copy / "chat_template.jinja").write_text("file{{ bos_token }}")
    assert configure(llama_copy, chat_template=TEMPLATE, bos_token={"content": "<s>"}).chat(USER) == "file<s>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "a model with a chat template, got one that only continues text"),
        ("{{ raise_exception('roles must alternate') }}", "chat template accepts, got: roles must alternate"),
        ("{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}", "is unsafe|undefined"),
    ],
)
def test_a_template_that_cannot_or_may_not_is_refused(llama_copy, template, message):
    with pytest.raises(ValueError, match=message):
        configure(llama_copy, chat_template=template).chat(USER)


def test_end_tokens_come_from_the_configuration_and_the_tokenizer(llama_copy):
    assert configure(llama_copy).eos_token_ids == (7,)
    tokenizer = configure(llama_copy, eos_token="a")
    assert tokenizer.eos_token_ids == (7, *tokenizer.encode("a"))


def test_a_start_token_is_added_once(llama_copy):
    """Llama 3's chat template writes the start token that its tokenizer would add again."""
    from tokenizers import AddedToken, Tokenizer, processors

    path = llama_copy / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", start)])
    tokenizer.save(str(path))
    ours = configure(llama_copy, bos_token="<s>")
    assert ours.encode("hi") == ours.encode("<s>hi")
    assert ours.encode("hi").count(start) == 1


def test_a_missing_or_cut_off_file_is_named(llama_copy):
    path = llama_copy / "tokenizer.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"expected a whole tokenizer\.json, got another file at"):
        PretrainedTokenizer(llama_copy)
    path.unlink()
    with pytest.raises(ValueError, match=r"expected tokenizer\.json in .*, got no such file"):
        PretrainedTokenizer(llama_copy)
