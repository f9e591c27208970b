"""Every way in which this program was once broken, or had never been tried, and the tests that try it.

A class of attack without a test would come back unseen; a test that was renamed or dropped is found here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: What was done to it -> where that is tried, as FILE or FILE::TEST.
ATTACKS: dict[str, tuple[str, ...]] = {
    "a model folder's code runs": ("models/test_remote_code.py",),
    "an endpoint says the key, and it is written": (
        "evals/judge/test_endpoint.py::test_an_error_or_a_judgment_that_echoes_the_key_does_not_show_it",
        "common/test_keys.py",
    ),
    "a plug-in ends the command": (
        "common/test_guests.py",
        "cli/test_supervisor.py::test_a_row_that_ends_the_process_is_left_out_and_the_rest_goes_on",
    ),
    "a judge that answers a byte a second": ("common/test_http.py",),
    "a plug-in raises, returns what is none, or changes what it gets": (
        "runner/test_guests.py",
        "common/test_guests.py::test_prompts_that_are_none",
        "common/test_guests.py::test_verdicts_that_are_none",
    ),
    "a plug-in changes what all methods share": (
        "runner/test_faulty_plugins.py::test_a_changed_model_ends_the_run",
        "engine/test_own_layers.py::test_defaults_of_torch_change_no_score",
    ),
    "a plug-in leaves a thread": ("cli/test_supervisor.py::test_nothing_left_behind_keeps_a_command",),
    "a plug-in reuses what it returned": ("runner/test_guests.py::test_a_method_may_reuse_its_lists",),
    "prompts that equal the tool's own": ("runner/test_warm_up.py",),
    "a plug-in that never returns": ("runner/test_guests.py::test_what_takes_too_long_is_broken_off",),
    "a plug-in that names a missing package breaks all others": (
        "common/test_registry.py::test_a_broken_one_is_listed_and_disturbs_no_other",
    ),
    "markup, terminal escapes and hidden letters in what is shown": ("cli/test_shown.py",),
    "formulas in a table": ("cli/test_shown.py::test_a_spreadsheet_computes_nothing",),
    "files nested without an end": ("common/test_reading.py", "common/test_reading_fuzz.py"),
    "a folder where a file should be": (
        "common/test_reading.py::test_what_is_no_file_is_named",
        "common/test_reading_fuzz.py::test_what_stands_in_a_files_place_is_refused",
    ),
    "schema versions that are none": ("common/test_reading.py::test_a_version_is_a_whole_number",),
    "model folders of pickles, wrong sizes and wrong types": (
        "models/test_weights.py",
        "models/test_gguf_header.py",
        "cli/test_bad_models.py",
    ),
    "chat templates that raise or never end": ("models/test_chat.py",),
    "numbers without a limit": ("cli/test_bad_input.py::test_a_mistake_in_the_command",),
    "names of any length and loops of links": ("fuzz/test_corpus.py",),
    "streams that are closed, full or have few letters": ("cli/test_streams.py",),
    "addresses that are none": ("common/test_http.py",),
    "SIGTERM": ("cli/test_signals.py", "chaos/test_chaos.py"),
    "mistakes that were found behind the run": (
        "cli/test_options.py::test_what_can_be_known_is_known_before_torch",
        "models/test_weights.py::test_devices_that_no_model_runs_on_are_refused_first",
    ),
    "an empty task": ("cli/test_bad_input.py::test_a_mistake_in_the_command",),
    "growth of memory and handles": ("soak/test_soak.py",),
    "numbers that are none in records": ("common/test_reading.py::test_numbers_that_no_table_takes_are_refused",),
    "compressed bombs": ("common/test_reading.py::test_a_compressed_file_unpacks_to_so_much_and_a_line_is_named",),
    "lines and texts of ten million letters": (
        "common/test_reading.py::test_lines_have_limits",
        "cli/test_shown.py::test_a_text_without_end_is_cut",
    ),
    "damage in draft heads": ("models/test_bad_heads.py",),
    "signals to sweep, score, train and judge": ("chaos/test_chaos.py",),
    "a clock that jumps": ("cli/test_clock_jumps.py",),
    "an answer that steers its judge": ("evals/judge/test_injection.py",),
    "damage in published claims": ("report/test_claims.py",),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_is_tried(attack: str) -> None:
    for where in ATTACKS[attack]:
        file, _, test = where.partition("::")
        content = (HERE / file).read_text()
        assert re.search(rf"^def {test}\(" if test else r"^def test_", content, re.MULTILINE), where
