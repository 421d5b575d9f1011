"""Small model folders for the rendering tests: tokenizers of three kinds, chat templates of four styles.

They are made on the spot (a BPE trained on a page of text), so that transformers can be asked for the same rendering.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SMOLLM2 = Path(__file__).parents[3] / ".models" / "smollm2-135m-instruct"

CORPUS = [
    "The weather in Oslo is cold, 3 degrees below zero; bring a coat!",
    'def hello(name: str) -> str:\n    return f"hello {name}"\n\n\nprint(hello("you"))',
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    "Räksmörgås, naïve café, 東京の天気は晴れです。 Привет, мир! 👩‍👩‍👧‍👦 नमस्ते",
    "user assistant system tool You are a helpful assistant.\n\n# Tools\n",
]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

THINKING = """
{%- if tools %}{{- '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}
{%- endif %}{{- '# Tools\\n<tools>' }}{% for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- if ns.looking and message.role == 'user' %}
        {%- set ns.looking = false %}{%- set ns.last = messages|length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content.lstrip('\\n') if message.content is string else '' }}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {%- if tool_call.function.arguments is string %}{{- tool_call.function.arguments }}
            {%- else %}{{- tool_call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% if opens %}{{- '<think>\\n' }}{% endif %}{% endif %}
"""

BRACKETS = """
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- bos_token }}
{%- set ns = namespace(expects='user') %}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {%- if ns.expects != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}
        {%- set ns.expects = 'assistant' %}
        {%- if tools and loop.first %}{{- '[TOOLS]' + (tools | tojson) + '[/TOOLS]' }}{% endif %}
        {{- '[INST]' + (system + '\\n\\n' if system and loop.first else '') + message.content.strip() + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {%- set ns.expects = 'user' %}
        {%- if message.tool_calls %}
            {{- '[CALLS]' }}
            {%- for call in message.tool_calls %}
                {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments + '}' }}
            {%- endfor %}
        {%- else %}{{- ' ' + message.content }}{% endif %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}{{- '[RESULTS]' + message.content + '[/RESULTS]' }}
    {%- else %}{{ raise_exception('no such role: ' + message.role) }}{% endif %}
{%- endfor %}
"""

PIPES = """
{%- for message in messages %}
{%- if message['role'] not in ['user', 'assistant'] %}{{ raise_exception('only user and assistant') }}{% endif %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}
{{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}
"""


def _save(folder: Path, tokenizer: Tokenizer, template: str | None, window: int, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    if template is not None:
        written["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    eos = tokenizer.token_to_id(config["eos_token"])
    described = {"max_position_embeddings": window, "vocab_size": tokenizer.get_vocab_size() + 7, "eos_token_id": eos}
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def _train(tokenizer: Tokenizer, alphabet: Sequence[str] = (), special: Sequence[str] = ()) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=list(alphabet), special_tokens=list(special), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)


def byte_level_model(folder: Path, template: str | None = THINKING, window: int = 4096) -> Path:
    """As Qwen's: byte-level BPE behind a regex, NFC, calls and thinking as added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, pre_tokenizers.ByteLevel.alphabet())
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    plain = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|fim▁begin|>")
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain])
    return _save(folder, tokenizer, template, window, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def metaspace_model(folder: Path, template: str | None = BRACKETS, window: int = 4096) -> Path:
    """As Llama's and Mistral's: a space mark before the first word only, byte fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
    _train(tokenizer, special=(*special, *byte_tokens))
    # bytes are ordinary tokens, as in those models: the trainer made them special
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] in special]
    made = Tokenizer.from_str(json.dumps(described))
    return _save(folder, made, template, window, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def stripping_model(folder: Path, template: str | None = PIPES, window: int = 4096) -> Path:
    """As Phi-3's: special tokens that swallow the white space after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, pre_tokenizers.ByteLevel.alphabet())
    special = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True, rstrip=True) for text in special])
    return _save(folder, tokenizer, template, window, eos_token="<|end|>", bos_token="<|endoftext|>")


@lru_cache
def _transformers_tokenizer(folder: Path) -> tuple[Any, str]:
    from transformers import PreTrainedTokenizerFast

    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = {name: config[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token") if config.get(name)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **named)
    return tokenizer, config.get("chat_template") or (folder / "chat_template.jinja").read_text()


def as_transformers(folder: Path, messages: Sequence[dict[str, Any]], tools: Any = None) -> tuple[int, ...]:
    """What transformers' apply_chat_template gives for a model folder."""
    tokenizer, template = _transformers_tokenizer(folder)
    return tuple(
        tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, add_generation_prompt=True, return_dict=False
        )
    )
