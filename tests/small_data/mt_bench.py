"""MT-Bench and Spec-Bench in miniature: questions, reference answers and judge prompts of our own."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_TURNS = {
    "writing": ["Describe a harbour at dawn.\n", "Say it again in one sentence."],
    "roleplay": ["You are a lighthouse. What do you see?", " And in fog?"],
    "reasoning": ["Ann stands left of Bo. Who stands right?", "And if both turn round?"],
    "math": ["What is three times 4?", "Add 1 to it: $12 + 1$"],
    "coding": ["Write `f` so that f({}) == {'a': [1]}", "```python\ndef f(x): return {0}\n```\nWhat is wrong with it?"],
    "extraction": ['Give the years in "1815 and 1848" as JSON, as in {"years": []}', "Now as a list."],
    "stem": ["Why is the sea salty?", "Which sea is the saltiest?"],
    "humanities": ["What is an archive for? Say “why” too.", "Name two."],
}


def _question(category: str, number: int) -> Row:
    at = CATEGORIES.index(category)
    row: Row = {"question_id": 81 + 10 * at + number, "category": category, "turns": list(_TURNS[category])}
    if number:
        row["turns"][0] = f"Once more, and shorter: {row['turns'][0]}"
        row["reference"] = ["", "for the reader alone"]  # some rows have it, of other categories too
    return row


QUESTIONS = [_question(category, number) for category in CATEGORIES for number in range(2)]
REFERENCES = [
    {
        "question_id": row["question_id"],
        "answer_id": f"own-{row['question_id']}",
        "model_id": "us",
        "choices": [{"index": 0, "turns": [f"{row['category']} {{1}}", f"{row['category']} two"]}],
        "tstamp": 1700000000.5,
    }
    for row in QUESTIONS
    if row["category"] in ("reasoning", "math", "coding")
]


def _prompt(name: str, type: str, system: str, template: str) -> Row:
    return {
        "name": name, "type": type, "system_prompt": system, "prompt_template": template,
        "description": "Prompt of our own", "category": "math" if "math" in name else "general",
        "output_format": "[[rating]]",
    }  # fmt: skip


_ASK = "Rate it as in [[5]].\n\n"
_SYSTEM = "You rate both answers. " + _ASK
_ONE = "[Question]\n{question}\n\n[Reference]\n{ref_answer_1}\n[End]\n\n[Answer]\n{answer}\n[End]"
_TURN = "### User:\n{question_N}\n\n### Assistant:\n{answer_N}\n\n"
_TWO = _TURN.replace("N", "1") + _TURN.replace("N", "2")
_RIGHT = _TWO.replace("Assistant", "Right").replace("{answer", "{ref_answer")
JUDGE_PROMPTS = [
    _prompt("pair-v2", "pairwise", _SYSTEM, "{question} {answer_a} {answer_b}"),
    _prompt("single-v1", "single", "You rate.", _ASK + _ONE.replace("[Reference]\n{ref_answer_1}\n[End]\n\n", "")),
    _prompt("single-math-v1", "single", "You rate.", _ASK + _ONE),
    _prompt("single-v1-multi-turn", "single", _SYSTEM, _TWO),
    _prompt("single-math-v1-multi-turn", "single", _SYSTEM, _RIGHT + _TWO),
]

_GROUPS = {
    "translation": ["Translate German to English: Das Meer ist ruhig."],
    "summarization": ["Summarize: The tide came in.\n\nIt went out again. "],
    "qa": ["Who keeps the lighthouse?"],
    "math_reasoning": ["Two boats carry 3 men each. How many men is that?"],
    "rag": ["Given: {a} [b]\nAnswer from the text alone: what is b?"],
}
# References of every kind there is: none, null, texts, lists of texts.
_REFERENCES: list[Row] = [{}, {"reference": None}, {"reference": ["x"]}, {"reference": [["x", "y"]]}]
SPEC_BENCH = QUESTIONS + [
    {"question_id": 161 + 80 * at + number, "category": group, "turns": [f"{turn} ({number})" if number else turn]}
    | reference
    for at, (group, (turn,)) in enumerate(_GROUPS.items())
    for number, reference in enumerate(_REFERENCES)
]
