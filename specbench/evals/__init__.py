"""Tasks and grading: prompts, verdicts, the judge, and the sandbox for programs that a model wrote."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.evals import contest_checks as contest_checks
    from specbench.evals import lm_eval_tasks as lm_eval_tasks
    from specbench.evals import mathematics as mathematics
    from specbench.evals import plus_checks as plus_checks
    from specbench.evals import sessions as sessions
    from specbench.evals import sql_checks as sql_checks
    from specbench.evals.benchmark_questions import known_questions as known_questions
    from specbench.evals.benchmark_questions import task_asking as task_asking
    from specbench.evals.contest_checks import Cases as Cases
    from specbench.evals.data import DataFile as DataFile
    from specbench.evals.data import by_field as by_field
    from specbench.evals.data import digest as digest
    from specbench.evals.data import each_row as each_row
    from specbench.evals.data import file_stem as file_stem
    from specbench.evals.data import is_present as is_present
    from specbench.evals.data import manifest as manifest
    from specbench.evals.data import names_file as names_file
    from specbench.evals.data import read_rows as read_rows
    from specbench.evals.data import recording_files as recording_files
    from specbench.evals.data import resolve_file as resolve_file
    from specbench.evals.data import user_file as user_file
    from specbench.evals.dialogue import STYLE_HELP as STYLE_HELP
    from specbench.evals.dialogue import Style as Style
    from specbench.evals.dialogue import build_dialogue as build_dialogue
    from specbench.evals.dialogue import choose_style as choose_style
    from specbench.evals.extract import UNPAIRED as UNPAIRED
    from specbench.evals.extract import Extracted as Extracted
    from specbench.evals.extract import bare_box as bare_box
    from specbench.evals.extract import continued_code as continued_code
    from specbench.evals.extract import fenced_code as fenced_code
    from specbench.evals.extract import last_box as last_box
    from specbench.evals.extract import whole_answer as whole_answer
    from specbench.evals.grading.launch import score_in_child as score_in_child
    from specbench.evals.judge.endpoint import Endpoint as Endpoint
    from specbench.evals.judge.judge import Unanswered as Unanswered
    from specbench.evals.judge.judge import judge_all as judge_all
    from specbench.evals.judge.judge import judge_questions as judge_questions
    from specbench.evals.judge.judge import judged_answers as judged_answers
    from specbench.evals.judge.judge_prompts import JudgePrompt as JudgePrompt
    from specbench.evals.judge.judge_prompts import JudgePrompts as JudgePrompts
    from specbench.evals.lm_eval_tasks import AskingStyle as AskingStyle
    from specbench.evals.lm_eval_tasks import refusal as refusal
    from specbench.evals.message import Message as Message
    from specbench.evals.message import ShareGptTurn as ShareGptTurn
    from specbench.evals.numbers import NUMBER as NUMBER
    from specbench.evals.numbers import ascii_numbers as ascii_numbers
    from specbench.evals.numbers import number_value as number_value
    from specbench.evals.own_file import OwnFileOptions as OwnFileOptions
    from specbench.evals.own_file import with_hash as with_hash
    from specbench.evals.plus_checks import Checker as Checker
    from specbench.evals.plus_checks import EvalPlus as EvalPlus
    from specbench.evals.plus_checks import Reference as Reference
    from specbench.evals.plus_checks import pack_inputs as pack_inputs
    from specbench.evals.prompt_draw import describe_draw as describe_draw
    from specbench.evals.prompt_draw import draw_from_each as draw_from_each
    from specbench.evals.prompt_draw import draw_prompts as draw_prompts
    from specbench.evals.rows import FORMATS as FORMATS
    from specbench.evals.rows import TODO as TODO
    from specbench.evals.rows import row_place as row_place
    from specbench.evals.sandbox.sandbox import Limits as Limits
    from specbench.evals.sandbox.sandbox import Program as Program
    from specbench.evals.sandbox.sandbox import Sandbox as Sandbox
    from specbench.evals.sessions import chained as chained
    from specbench.evals.task import Question as Question
    from specbench.evals.task import Unscored as Unscored
    from specbench.evals.task import Verdict as Verdict
else:
    __getattr__, __dir__ = door(__name__)
